// The client's half of lanes in shared memory, for daemons on the worker's own host.
#include <utility>

#include "common/base/shortage.h"
#include "common/transport/client_lanes.h"
#include "common/transport/shm/shm_dial.h"
#include "common/transport/shm/shm_transport.h"

namespace phub::transport {
namespace {

class ShmLanes final : public ClientLanes {
 public:
  absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::uint32_t connections_max,
                                                           std::size_t /*window_bytes*/) override {
    absl::StatusOr<Descriptor> epoll = MakeEpoll();
    if (!epoll.ok()) return epoll.status();
    return std::make_unique<ShmTransport>(connections_max, *std::move(epoll));
  }

  absl::Status Offer(const LaneTarget& target) const override {
    if (target.address.empty())
      return absl::UnimplementedError("the daemon offers no shared memory");
    if (!target.same_host) return absl::UnimplementedError("the daemon is on another host");
    return absl::OkStatus();
  }

  absl::StatusOr<DialledLane> Dial(const LaneTarget& target, const wire::LaneHello& hello,
                                   DurationNs timeout, std::uint32_t /*attempt*/,
                                   bool& nonce_used) override {
    nonce_used = true;
    auto connection = DialShm(target.address, hello, timeout, target.regions);
    if (!connection.ok()) return connection.status();
    return DialledLane{*std::move(connection), "same host"};
  }
};

}  // namespace

ClientLaneProvider ShmClientLanes() {
  return {.name = "shm",
          .spoken_name = "shared memory",
          .choice = 2,
          .preference = 2,
          .shares_memory = true,
          .open = [](const std::string&) -> std::unique_ptr<ClientLanes> {
            return std::make_unique<ShmLanes>();
          }};
}

}  // namespace phub::transport
