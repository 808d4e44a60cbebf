#include "common/transport/lane_request.h"

#include <fmt/format.h>

namespace phub::transport {

absl::Status CheckWelcome(const wire::LaneWelcome& welcome, VersionOffer offer,
                          const std::string& peer, const std::string& what) {
  const std::string refused = fmt::format("{} refused {}: ", peer, what);
  switch (welcome.refusal) {
    case wire::LaneRefusal::kNone: break;
    case wire::LaneRefusal::kVersion:
      return absl::FailedPreconditionError(
          refused + fmt::format("the daemon supports lane versions {}..{}, this client {}..{}; "
                                "update the older of the two",
                                welcome.version_min, welcome.version_max, offer.min, offer.max));
    case wire::LaneRefusal::kNonce:
      return absl::PermissionDeniedError(
          refused +
          "the daemon did not accept its nonce, which was probably used before or has "
          "expired; join the job again");
    case wire::LaneRefusal::kJob:
      return absl::FailedPreconditionError(
          refused + "the job has ended, or its membership has changed; join the job again");
    case wire::LaneRefusal::kBusy:
      return absl::AlreadyExistsError(refused + "this lane is already open; try again later");
    case wire::LaneRefusal::kCapacity:
      return absl::ResourceExhaustedError(
          refused + "the daemon has too many connections or no memory left; try again later");
    case wire::LaneRefusal::kEncryption:
      return absl::FailedPreconditionError(
          refused + "the daemon or the tenant requires encryption, and this lane has none");
  }
  if (welcome.version >= offer.min && welcome.version <= offer.max) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("{} chose lane version {}, but this client supports {}..{} only", peer,
                  welcome.version, offer.min, offer.max));
}

absl::StatusOr<std::uint8_t> JudgeWelcome(std::span<const std::byte> answer, VersionOffer offer,
                                          const std::string& peer, const std::string& what) {
  wire::LaneWelcome welcome;
  if (!wire::DecodeLaneWelcome(answer, welcome)) {
    return absl::InternalError(
        fmt::format("{} sent an invalid answer; it is probably not a phub daemon", peer));
  }
  if (absl::Status status = CheckWelcome(welcome, offer, peer, what); !status.ok()) return status;
  return welcome.version;
}

std::string DescribeLane(const wire::LaneHello& hello) {
  return fmt::format("the lane of rank {} to core {}", hello.rank.value, hello.core.value);
}

}  // namespace phub::transport
