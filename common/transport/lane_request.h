// The client's part of a lane request: the versions that it offers, and its check of the daemon's
// answer. Pure.
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

// If both versions are 0, sets them to those that this build supports. Returns the offered
// versions.
template <typename Request>
VersionOffer OfferVersions(Request& request) {
  if (request.version_min == 0 && request.version_max == 0) {
    request.version_min = wire::kLaneVersionMin;
    request.version_max = wire::kLaneVersion;
  }
  return {request.version_min, request.version_max};
}

// OK if the daemon accepted the lane. `peer` and `what` are for the error: "peer refused what: why
// and what to do". kFailedPrecondition, kPermissionDenied, kAlreadyExists and kResourceExhausted
// mean what tcp_dial.h says; kInternal: the daemon chose a version that was not offered.
absl::Status CheckWelcome(const wire::LaneWelcome& welcome, VersionOffer offer,
                          const std::string& peer, const std::string& what);
// Decodes and checks the bytes of an answer; returns the lane's version. Errors: those of
// CheckWelcome, or kInternal if the bytes are not a valid answer.
absl::StatusOr<std::uint8_t> JudgeWelcome(std::span<const std::byte> answer, VersionOffer offer,
                                          const std::string& peer, const std::string& what);
// "the lane of rank 2 to core 0"
std::string DescribeLane(const wire::LaneHello& hello);

}  // namespace phub::transport
