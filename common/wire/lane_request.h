// What the requests of a client without a lane have in common (LaneHello, SharedBatchRequest): 64
// bytes, told apart by their magic. lane_hello.h and shared_memory.h draw them.
#pragma once

#include <cstdint>
#include <span>

#include "common/wire/lane_hello.h"

namespace phub::wire {

struct LaneRequest {
  std::uint8_t version_min = 0;
  std::uint8_t version_max = 0;
  std::uint32_t subject = 0;  // the core, or the batch
  Rank rank{};
  Incarnation incarnation{};
  MembershipEpoch membership_epoch{};
  Nonce nonce{};
};

void EncodeLaneRequest(std::uint32_t magic, const LaneRequest& request,
                       std::span<std::byte, kLaneHelloBytes> bytes);
// False unless the form is right (size, magic, zero fields, version_min <= version_max).
[[nodiscard]] bool DecodeLaneRequest(std::uint32_t magic, std::span<const std::byte> bytes,
                                     LaneRequest& request);

}  // namespace phub::wire
