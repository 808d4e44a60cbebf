// The common layout of the two requests that a client sends before it has a lane: LaneHello and
// SharedBatchRequest. Both have 64 bytes and differ in their magic. lane_hello.h and
// shared_memory.h show the layouts.
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
// False unless size, magic, zero fields and version_min <= version_max are valid.
[[nodiscard]] bool DecodeLaneRequest(std::uint32_t magic, std::span<const std::byte> bytes,
                                     LaneRequest& request);

}  // namespace phub::wire
