// What a round of a pooled key is in one chunk.
#pragma once

#include <cstdint>

#include "common/base/element_type.h"
#include "common/base/ids.h"
#include "common/wire/message.h"

namespace phub::server {

struct PooledPart {
  wire::RoundOperation operation{};
  Rank root{};  // of kPoolMove; numbered over the whole job
  numeric::ElementType type{};
  std::uint32_t elements = 0;  // of this chunk
  wire::PoolRound round{};

  std::uint32_t Bytes() const { return elements * numeric::ElementBytes(type); }
  bool IsOf(const wire::MessageHeader& header) const {
    return header.operation == operation && header.root == root && header.type == type &&
           header.pool == round;
  }
  // Whether the rank has sent the payload of a round that moves, which gets no reply with payload.
  bool IsMovedBy(Rank rank_of_job) const {
    return operation == wire::RoundOperation::kPoolMove && root == rank_of_job;
  }
};

}  // namespace phub::server
