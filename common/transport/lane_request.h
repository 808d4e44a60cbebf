// What a client says of versions when it asks for a lane, and what it makes of the answer. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/lane_hello.h"
#include "common/wire/message.h"

namespace phub::transport {

struct VersionOffer {
  std::uint8_t min = 0;
  std::uint8_t max = 0;
};

// Versions both 0 stand for what this build speaks: fills that in. Returns what is offered.
template <typename Request>
VersionOffer OfferVersions(Request& request) {
  if (request.version_min == 0 && request.version_max == 0) {
    request.version_min = wire::kLaneVersionMin;
    request.version_max = wire::kLaneVersion;
  }
  return {request.version_min, request.version_max};
}

// OK if the daemon gives what was asked for. `peer` and `what` are for the error: "peer refused
// what: why and what to do". kFailedPrecondition, kPermissionDenied, kAlreadyExists,
// kResourceExhausted as DialTcp says; kInternal if the version chosen was never offered.
absl::Status CheckWelcome(const wire::LaneWelcome& welcome, VersionOffer offer,
                          const std::string& peer, const std::string& what);
// The version of the lane that these bytes of an answer welcome to. Errors of CheckWelcome, or
// kInternal: they are no answer.
absl::StatusOr<std::uint8_t> JudgeWelcome(std::span<const std::byte> answer, VersionOffer offer,
                                          const std::string& peer, const std::string& what);
// "the lane of rank 2 to core 0"
std::string DescribeLane(const wire::LaneHello& hello);

}  // namespace phub::transport
