// The client's half of lanes over RDMA verbs, which are requested at the daemon's data port.
#include <algorithm>
#include <utility>

#include "common/base/random.h"
#include "common/transport/client_lanes.h"
#include "common/transport/verbs/verbs_dial.h"
#include "common/transport/verbs/verbs_doctor.h"
#include "common/transport/verbs/verbs_side.h"
#include "common/transport/verbs/verbs_transport.h"

namespace phub::transport {
namespace {

class VerbsLanes final : public ClientLanes {
 public:
  explicit VerbsLanes(const std::string& daemon_host) : side_(daemon_host) {}

  absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::uint32_t connections_max,
                                                           std::size_t /*window_bytes*/) override {
    if (side_.device_count() == 0) return nullptr;
    return VerbsTransport::Create(side_.queues(), connections_max);
  }

  absl::Status Offer(const LaneTarget& target) const override {
    if (!target.encryption_required) return absl::OkStatus();
    return absl::UnimplementedError(
        "the tenant requires encryption, but lanes over RDMA are not encrypted");
  }

  std::uint32_t attempt_count() const override { return std::max(side_.device_count(), 1u); }

  absl::StatusOr<DialledLane> Dial(const LaneTarget& target, const wire::LaneHello& hello,
                                   DurationNs timeout, std::uint32_t attempt,
                                   bool& nonce_used) override {
    absl::StatusOr<VerbsSide::Way> way = side_.WayTo(target.host, target.core.value, attempt);
    if (absl::IsNotFound(way.status())) return absl::UnimplementedError(way.status().message());
    if (!way.ok()) return way.status();
    SystemRandom random;
    nonce_used = true;
    auto connection = DialVerbs(target.host, target.port, hello, timeout, std::move(way->queue),
                                std::move(way->domain), random);
    if (!connection.ok()) return connection.status();
    return DialledLane{*std::move(connection), std::move(way->reason)};
  }

  void Register(std::byte* data, std::size_t bytes, MemoryUse use) override {
    side_.Register(
        data, bytes,
        use == MemoryUse::kSend ? RegisteredMemory::Use::kSend : RegisteredMemory::Use::kReceive);
  }

  bool registers_memory() const override { return side_.device_count() > 0; }

 private:
  VerbsSide side_;
};

LaneDiagnosis Diagnose(const LaneNeeds& needs) {
  const VerbsNeeds asked{
      .pinned_bytes = needs.pinned_bytes, .peer = ParseGid(needs.peer), .daemon = needs.daemon};
  const VerbsHostFacts facts = ReadVerbsHostFacts();
  return {.findings = JudgeVerbs(facts, asked), .usable_devices = UsableVerbsDevices(facts, asked)};
}

}  // namespace

ClientLaneProvider VerbsClientLanes() {
  return {.name = "verbs",
          .spoken_name = "verbs",
          .choice = 3,
          .preference = 1,
          .best_effort = true,
          .open = [](const std::string& daemon_host) -> std::unique_ptr<ClientLanes> {
            return std::make_unique<VerbsLanes>(daemon_host);
          },
          .diagnose = Diagnose};
}

}  // namespace phub::transport
