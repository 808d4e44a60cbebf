// A worker's datagrams, with a socket in the aggregator's place.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/aggregation/ports.h"

namespace phub::aggregation {
namespace {

constexpr Geometry kGeometry{.positions = 4, .blocks = 2};
constexpr std::array<std::int32_t, 1> kIntegers{7};

DatagramSocket Loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_storage storage{};
  reinterpret_cast<sockaddr_in&>(storage) = address;
  return *DatagramSocket::Bind(storage, sizeof address);
}

class WorkerPortTest : public ::testing::Test {
 protected:
  WorkerPortTest() {
    lease_.number = 5;
    lease_.slot_count = kGeometry.positions * kGeometry.blocks;
    lease_.worker_count = 1;
    lease_.count_max = 1;
    lease_.aggregator = aggregator_.endpoint();
    lease_.workers[0] = socket_.endpoint();
    port_.Open(lease_, 0);
    stream_.StreamIs(LeaseNumber{5}, actions_);
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
      stream_.AddChunk(2);
      stream_.Push(ChunkIndex{chunk}, Iteration{1}, actions_);
      EXPECT_TRUE(stream_.Assign(LeaseNumber{5}, Position{chunk}, ChunkIndex{chunk}, Iteration{1},
                                 actions_));
    }
    WorkerActions over_tcp;
    port_.Perform(actions_, 0, over_tcp);
    EXPECT_EQ(Sent(6).size(), 6u) << "payloads";
  }
  static bool Await(const DatagramSocket& socket) {
    pollfd item{socket.descriptor(), POLLIN, 0};
    return poll(&item, 1, 5000) > 0;
  }
  // What the port sends, `count` packets.
  std::vector<phub_packet> Sent(std::size_t count) {
    std::vector<phub_packet> packets;
    while (packets.size() < count && Await(aggregator_)) {
      aggregator_.Receive([&](std::span<const std::uint8_t> datagram, const phub_endpoint&) {
        phub_packet_decode(datagram.data(), &packets.emplace_back());
      });
    }
    return packets;
  }
  void TakenArrives(Position position, TimeNs now) {
    phub_packet taken{};
    taken.lease = 5;
    taken.kind = PHUB_PACKET_TAKEN;
    taken.worker = PHUB_EVERY_WORKER;
    taken.phase = kGeometry.PhaseOf(position);
    taken.slot = static_cast<__u16>(kGeometry.SlotOf(position, 0));
    std::array<std::uint8_t, PHUB_PACKET_BYTES> header{};
    phub_packet_encode(&taken, &lease_.key, header.data());
    aggregator_.Queue(socket_.endpoint(), header, {});
    aggregator_.Flush();
    ASSERT_TRUE(Await(socket_));
    EXPECT_TRUE(port_.Receive(now));
  }

  DatagramSocket aggregator_ = Loopback();
  DatagramSocket socket_ = Loopback();
  phub_lease lease_{};
  WorkerStream stream_{kGeometry};
  WorkerPort port_{kGeometry, stream_, socket_,
                   [](ChunkIndex, Iteration, std::uint32_t) {
                     return WorkerPort::Payload{.integers = kIntegers, .exponent = 1};
                   },
                   [](const phub_parameters&, std::span<const std::byte>) {}};
  WorkerActions actions_;
};

TEST_F(WorkerPortTest, ProbesAPositionOnceALaterOneIsTaken) {
  port_.Probe(1);
  EXPECT_EQ(port_.probes_sent(), 0u);
  TakenArrives(Position{1}, 2);
  EXPECT_LE(port_.deadline(), 2);
  port_.Probe(2);
  const std::vector<phub_packet> probes = Sent(2);
  ASSERT_EQ(probes.size(), 2u);
  for (const phub_packet& probe : probes) {
    EXPECT_EQ(probe.kind, PHUB_PACKET_PROBE);
    EXPECT_LT(probe.slot, kGeometry.blocks) << "of the first position";
  }
  EXPECT_EQ(port_.probes_sent(), 2u) << "nothing about the third position, which is later";
}

TEST_F(WorkerPortTest, DoesNotProbePositionsThatAreTakenInOrder) {
  TakenArrives(Position{0}, 2);
  TakenArrives(Position{1}, 3);
  port_.Probe(3);
  EXPECT_EQ(port_.probes_sent(), 0u);
}

}  // namespace
}  // namespace phub::aggregation
