// A core loop's datagrams, with a socket in the aggregator's place.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <vector>

#include "common/aggregation/ports.h"

namespace phub::aggregation {
namespace {

// More blocks than a word of a NACK has bits.
constexpr Geometry kGeometry{.positions = 2, .blocks = 40};

DatagramSocket Loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_storage storage{};
  reinterpret_cast<sockaddr_in&>(storage) = address;
  return *DatagramSocket::Bind(storage, sizeof address);
}

bool Await(const DatagramSocket& socket) {
  pollfd item{socket.descriptor(), POLLIN, 0};
  return poll(&item, 1, 60'000) > 0;
}

class CorePortTest : public ::testing::Test {
 protected:
  CorePortTest() {
    lease_.number = 5;
    lease_.slot_count = kGeometry.positions * kGeometry.blocks;
    lease_.worker_count = 1;
    lease_.count_max = 2;
    lease_.aggregator = aggregator_.endpoint();
    lease_.core_loop = socket_.endpoint();
    port_.Open(lease_);
    stream_.AddChunk(33, Iteration{1});
    stream_.AddChunk(40, Iteration{1});
    stream_.Open(LeaseNumber{5}, actions_);
    for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
      const std::vector<std::uint8_t> exponents(stream_.BlocksOf(ChunkIndex{chunk}), 1);
      EXPECT_TRUE(stream_.Announce(Rank{0}, LeaseNumber{5}, ChunkIndex{chunk}, Iteration{1},
                                   exponents, actions_));
      stream_.Assign(ChunkIndex{chunk}, actions_);
      port_.NoteAssigned(Position{chunk}, 0);
    }
  }
  void Sum(std::uint32_t position, std::uint32_t block) {
    phub_packet sum{};
    sum.lease = 5;
    sum.kind = PHUB_PACKET_SUM;
    sum.worker = PHUB_EVERY_WORKER;
    sum.exponent = 1;
    sum.slot = static_cast<__u16>(kGeometry.SlotOf(Position{position}, block));
    std::array<std::uint8_t, PHUB_PACKET_BYTES> header{};
    phub_packet_encode(&sum, &lease_.key, header.data());
    aggregator_.Queue(socket_.endpoint(), header, {});
    aggregator_.Flush();
    ASSERT_TRUE(Await(socket_));
    EXPECT_TRUE(
        port_.Receive(0, [](const CoreActions&, std::span<const std::int32_t>, std::uint8_t) {}));
  }
  struct Nack {
    phub_nack about{};
    std::uint32_t phase = 0;
    std::uint64_t bits = 0;
    phub_check check{};
  };
  Nack NextNack() {
    Nack nack;
    EXPECT_TRUE(Await(aggregator_));
    aggregator_.Receive([&](std::span<const std::uint8_t> datagram, const phub_endpoint& source) {
      phub_packet packet{};
      nack.check = phub_packet_check(&lease_, PHUB_KINDS_FROM_CORE_LOOP, datagram.data(),
                                     static_cast<__u32>(datagram.size()), &source, &packet);
      phub_packet_get_nack(&packet, &nack.about);
      nack.phase = packet.phase;
      nack.bits = phub_load64(datagram.data() + PHUB_PACKET_BYTES);
    });
    return nack;
  }

  DatagramSocket aggregator_ = Loopback();
  DatagramSocket socket_ = Loopback();
  phub_lease lease_{};
  CoreStream stream_{kGeometry, 1};
  CorePort port_{kGeometry, stream_, socket_};
  CoreActions actions_;
};

TEST_F(CorePortTest, AsksForTheSumsOfAPositionThatOthersHaveOvertaken) {
  EXPECT_EQ(port_.AskAgain(0), 0u);
  for (const std::uint32_t block : {0u, 31u}) Sum(0, block);
  for (std::uint32_t block = 0; block < NackTimers::kLaterSums; ++block) Sum(1, block);
  EXPECT_LE(port_.deadline(), 0);
  EXPECT_EQ(port_.AskAgain(0), 1u);
  const Nack nack = NextNack();
  EXPECT_EQ(nack.check, PHUB_CHECK_GOOD);
  EXPECT_EQ(nack.about.slot, 0u);
  EXPECT_EQ(nack.about.number, 1u);
  EXPECT_EQ(nack.phase, 0u);
  EXPECT_EQ(nack.bits, 0x17ffffffeu) << "blocks 1 to 30 and 32 of 33";
}

TEST_F(CorePortTest, AsksForWhatIsMissingOnceTheLastBlockIsThere) {
  for (const std::uint32_t block : {5u, 31u}) Sum(0, block);
  EXPECT_EQ(port_.AskAgain(0), 0u);
  Sum(0, 32);
  EXPECT_EQ(port_.AskAgain(0), 1u);
  EXPECT_EQ(NextNack().bits, 0x7fffffdfu);
}

TEST_F(CorePortTest, AsksAfterSilenceAndNumbersItsQuestions) {
  for (std::uint32_t block = 0; block < 33; ++block) Sum(0, block);
  EXPECT_EQ(port_.AskAgain(0), 0u) << "nothing of the first position is missing";
  for (std::uint16_t number = 1; number <= 2; ++number) {
    EXPECT_EQ(port_.AskAgain(port_.deadline()), 1u);
    const Nack nack = NextNack();
    EXPECT_EQ(nack.about.slot, 40u);
    EXPECT_EQ(nack.about.number, number);
    EXPECT_EQ(std::bitset<64>(nack.bits).count(), 40u);
  }
}

}  // namespace
}  // namespace phub::aggregation
