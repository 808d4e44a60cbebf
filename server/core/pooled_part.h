// What a round of a pooled key is in one chunk.
#pragma once

#include <cstdint>

#include "common/base/element_type.h"
#include "common/wire/message.h"

namespace phub::server {

struct PooledPart {
  numeric::ElementType type{};
  std::uint32_t elements = 0;  // of this chunk
  wire::PoolRound round{};

  std::uint32_t Bytes() const { return elements * numeric::ElementBytes(type); }
  bool IsOf(const wire::MessageHeader& header) const {
    return header.pool == round && header.type == type;
  }
};

}  // namespace phub::server
