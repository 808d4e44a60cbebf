// The two ends of shared-memory lanes in one process, each with its own mappings. Both ends are
// tested on both sides: the daemon's rings by a packet, the client's by an eventfd.
#include <poll.h>
#include <sys/socket.h>

#include <array>

#include "common/base/check.h"
#include "common/transport/shm/shm_lane.h"
#include "common/transport/shm/shm_transport.h"
#include "tests/conformance/harness.h"

namespace phub::conformance {
namespace {

using transport::ShmConnection;

class ShmHarness final : public Harness {
 public:
  ShmHarness(const HarnessLimits& limits, const transport::ShmLimits& shm_limits,
             bool daemon_is_left)
      : limits_(shm_limits),
        daemon_is_left_(daemon_is_left),
        left_(limits.connections_max),
        right_(limits.connections_max) {}

  transport::Transport& left() override { return left_; }
  transport::Transport& right() override { return right_; }

  ConnectionPair Connect() override {
    int sockets[2];
    PHUB_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
    Descriptor daemons(sockets[0]);
    Descriptor clients(sockets[1]);
    auto daemon = transport::OfferShmLane(daemons,
                                          {.version = wire::kLaneVersion,
                                           .version_min = wire::kLaneVersionMin,
                                           .version_max = wire::kLaneVersion},
                                          {}, limits_);
    PHUB_CHECK(daemon.ok());
    std::array<std::byte, wire::kLaneWelcomeBytes + wire::kSharedLaneBytes> answer;
    ReceivedPacket packet = ReceivePacket(clients.get(), answer);
    PHUB_CHECK(packet.bytes == static_cast<std::ptrdiff_t>(answer.size()));
    wire::SharedLane shape;
    PHUB_CHECK(wire::DecodeSharedLane(std::span(answer).last(wire::kSharedLaneBytes), shape));
    auto client =
        transport::AcceptShmLane(std::move(clients), shape, packet, /*regions=*/nullptr, limits_);
    PHUB_CHECK(client.ok());
    if (daemon_is_left_) return {*std::move(daemon), *std::move(client)};
    return {*std::move(client), *std::move(daemon)};
  }

  // tests/unit/transport/shm has a peer that writes arbitrary data into the rings: it does not send
  // bytes in order.
  std::unique_ptr<RawPeer> ConnectRaw(std::unique_ptr<transport::Connection>&) override {
    return nullptr;
  }

  void Pump() override {
    if (!left_.Arm() || !right_.Arm()) return;
    pollfd items[2] = {{left_.descriptor(), POLLIN, 0}, {right_.descriptor(), POLLIN, 0}};
    poll(items, 2, 1);
  }

 private:
  const transport::ShmLimits limits_;
  const bool daemon_is_left_;
  transport::ShmTransport left_;
  transport::ShmTransport right_;
};

transport::ShmLimits Limits(const HarnessLimits& limits) {
  return {.send_queue = limits.send_queue, .received_lent = limits.received_lent};
}

}  // namespace

std::unique_ptr<Harness> MakeShmDaemonHarness(const HarnessLimits& limits) {
  return std::make_unique<ShmHarness>(limits, Limits(limits), /*daemon_is_left=*/true);
}

std::unique_ptr<Harness> MakeShmClientHarness(const HarnessLimits& limits) {
  return std::make_unique<ShmHarness>(limits, Limits(limits), /*daemon_is_left=*/false);
}

// With these sizes, everything wraps and fills all the time.
std::unique_ptr<Harness> MakeShmSmallHarness(const HarnessLimits& limits) {
  transport::ShmLimits small = Limits(limits);
  small.ring_records = wire::kRingRecordsMin;
  small.arena_bytes = wire::kArenaBytesMin;
  return std::make_unique<ShmHarness>(limits, small, /*daemon_is_left=*/true);
}

}  // namespace phub::conformance
