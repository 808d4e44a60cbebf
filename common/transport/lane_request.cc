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
          refused + fmt::format("daemon speaks lane versions {}..{}, this client {}..{}; update "
                                "the older of the two",
                                welcome.version_min, welcome.version_max, offer.min, offer.max));
    case wire::LaneRefusal::kNonce:
      return absl::PermissionDeniedError(
          refused + "its nonce is unknown, used, expired or another's; join the job again");
    case wire::LaneRefusal::kJob:
      return absl::FailedPreconditionError(refused + "the job ended, or its membership changed");
    case wire::LaneRefusal::kBusy:
      return absl::AlreadyExistsError(refused + "its place is held by a live lane");
    case wire::LaneRefusal::kCapacity:
      return absl::ResourceExhaustedError(
          refused + "too many connections, or no memory left; try again later");
    case wire::LaneRefusal::kEncryption:
      return absl::FailedPreconditionError(
          refused + "it would not be encrypted, and the daemon or the tenant wants it to be");
  }
  if (welcome.version >= offer.min && welcome.version <= offer.max) return absl::OkStatus();
  return absl::InternalError(fmt::format("{} chose lane version {}, this client speaks {}..{}",
                                         peer, welcome.version, offer.min, offer.max));
}

absl::StatusOr<std::uint8_t> JudgeWelcome(std::span<const std::byte> answer, VersionOffer offer,
                                          const std::string& peer, const std::string& what) {
  wire::LaneWelcome welcome;
  if (!wire::DecodeLaneWelcome(answer, welcome)) {
    return absl::InternalError(fmt::format("{} does not answer as a phub daemon does", peer));
  }
  if (absl::Status status = CheckWelcome(welcome, offer, peer, what); !status.ok()) return status;
  return welcome.version;
}

std::string DescribeLane(const wire::LaneHello& hello) {
  return fmt::format("the lane of rank {} to core {}", hello.rank.value, hello.core.value);
}

}  // namespace phub::transport
