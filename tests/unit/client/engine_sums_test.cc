// Rounds that an aggregator sums. The test acts as the daemon, and as the aggregator with a socket.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "common/aggregation/datagram_socket.h"
#include "common/aggregation/endpoint_text.h"
#include "common/aggregation/fixed_point.h"
#include "common/aggregation/stream_terms.h"
#include "tests/unit/client/engine_fixture.h"

namespace phub::client {
namespace {

using aggregation::DatagramSocket;
using wire::MessageKind;
using Posted = FakeTransport::Posted;

constexpr std::uint32_t kBlock = 24;  // a chunk of 64 elements has blocks of 24, 24 and 16
constexpr std::uint32_t kBlocks = 3;
constexpr std::uint32_t kRanks = 2;
constexpr std::uint32_t kLease = 5;

DatagramSocket LocalSocket() {
  const auto address = aggregation::ParseAddress("127.0.0.1:0");
  auto socket = DatagramSocket::Bind(address->storage, address->bytes);
  PHUB_CHECK(socket.ok());
  return *std::move(socket);
}

class EngineSumsTest : public EngineTest {
 public:
  using EngineTest::AddKey;
  using EngineTest::lanes_;
  using EngineTest::Push;
  using EngineTest::Run;
  using EngineTest::transport_;

  void StartSums(std::uint32_t slots = 1) {
    config_ = {.incarnation = Incarnation{77},
               .membership_epoch = MembershipEpoch{3},
               .slots_per_lane = slots,
               .lane_count = 1,
               .sum_sockets = {&socket_},
               .sum_block = kBlock,
               .world_size = kRanks};
    layout_ = std::make_unique<LaneLayout>(kChunkBytes, 1);
    engine_ = std::make_unique<Engine>(config_, clock_, transports_, lanes_);
    Attach(0);
    Run();
  }
  aggregation::StreamTerms Terms(std::uint32_t lease = kLease) {
    return {.lease = aggregation::LeaseNumber{lease},
            .worker = 1,
            .worker_count = kRanks,
            .count_max = kBlock,
            .geometry = {.positions = 2, .blocks = kBlocks},
            .key = {{11, 12}},
            .aggregator = aggregator_.endpoint()};
  }
  void OpenStream(const aggregation::StreamTerms& terms, std::size_t connection = 0) {
    std::array<std::byte, aggregation::kStreamTermsBytes> bytes;
    aggregation::EncodeStreamTerms(terms, bytes);
    transport_.Deliver(connection, StreamHeader(MessageKind::kStreamIs, 0), bytes);
  }
  void CloseStream(std::size_t connection = 0) {
    transport_.Deliver(connection, StreamHeader(MessageKind::kStreamIs, 0), {});
  }
  wire::MessageHeader StreamHeader(MessageKind kind, std::uint32_t chunk,
                                   std::uint64_t iteration = 0) const {
    wire::MessageHeader header = FromDaemon(kind, chunk);
    header.version = wire::kStreamVersion;
    header.iteration = Iteration{iteration};
    return header;
  }
  void Assign(std::uint32_t chunk, std::uint64_t iteration, std::uint64_t position,
              const std::vector<std::uint8_t>& exponents, std::size_t connection = 0) {
    wire::MessageHeader header = StreamHeader(MessageKind::kAssign, chunk, iteration);
    header.slot = SlotIndex{kLease};
    header.value_bits = position;
    transport_.Deliver(connection, header, std::as_bytes(std::span(exponents)));
  }
  void UseTcp(std::uint32_t chunk, std::uint64_t iteration) {
    transport_.Deliver(0, StreamHeader(MessageKind::kUseTcp, chunk, iteration), {});
  }
  static std::span<const float> BlockOf(const TestKey& key, std::uint32_t chunk,
                                        std::uint32_t block) {
    return std::span(key.gradients)
        .subspan(chunk * kChunkElements + block * kBlock)
        .first(block + 1 < kBlocks ? kBlock : 16);
  }
  // Datagrams that have arrived at the aggregator, by slot.
  struct Arrived {
    phub_packet packet{};
    std::vector<std::int32_t> integers;
  };
  std::map<std::uint32_t, Arrived> Datagrams(std::size_t expected) {
    std::map<std::uint32_t, Arrived> arrived;
    phub_lease lease = aggregation::LeaseOf(Terms());
    lease.workers[1] = socket_.endpoint();
    for (int i = 0; i < 1000 && arrived.size() < expected; ++i) {
      aggregator_.Receive([&](std::span<const std::uint8_t> bytes, const phub_endpoint& source) {
        phub_packet packet{};
        EXPECT_EQ(phub_packet_check(&lease, PHUB_KINDS_FROM_WORKERS, bytes.data(),
                                    static_cast<__u32>(bytes.size()), &source, &packet),
                  PHUB_CHECK_GOOD);
        Arrived& one = arrived[packet.slot];
        one.packet = packet;
        one.integers.resize(packet.count);
        std::memcpy(one.integers.data(), bytes.data() + PHUB_PACKET_BYTES, 4u * packet.count);
      });
    }
    return arrived;
  }
  static std::vector<std::uint32_t> Kinds(const std::vector<Posted>& posted) {
    std::vector<std::uint32_t> kinds;
    for (const Posted& one : posted) kinds.push_back(static_cast<std::uint32_t>(one.header.kind));
    return kinds;
  }

  DatagramSocket socket_ = LocalSocket();
  DatagramSocket aggregator_ = LocalSocket();
};

constexpr auto kAnnounced = static_cast<std::uint32_t>(MessageKind::kAnnounce);
constexpr auto kPushed = static_cast<std::uint32_t>(MessageKind::kGradient);
using Numbers = std::vector<std::uint32_t>;

TEST_F(EngineSumsTest, RoundsAreAnnouncedWithoutSlotsOnceAStreamIsOpen) {
  StartSums();
  TestKey& key = AddKey({0, 0, 0});
  Push(key);
  EXPECT_EQ(Kinds(RunAndTake()), Numbers{kPushed});  // one slot
  OpenStream(Terms());
  const auto posted = RunAndTake();
  EXPECT_EQ(Kinds(posted), (Numbers{kAnnounced, kAnnounced}));
  EXPECT_EQ(posted[0].header.chunk.value, 1u);
  EXPECT_EQ(posted[0].header.slot.value, kLease);
  EXPECT_EQ(posted[0].header.iteration.value, 1u);
  ASSERT_EQ(posted[0].bytes.size(), kBlocks);
  for (std::uint32_t block = 0; block < kBlocks; ++block)
    EXPECT_EQ(posted[0].bytes[block], std::byte{aggregation::ExponentOf(BlockOf(key, 1, block))});
  for (std::uint32_t chunk = 0; chunk < 3; ++chunk) Reply(0, chunk, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  Push(key);
  EXPECT_EQ(Kinds(RunAndTake()), (Numbers{kAnnounced, kAnnounced, kAnnounced}));
  EXPECT_EQ(engine_->free_slots(0), 1u);
  EXPECT_TRUE(lanes_.closed_lanes.empty());
}

TEST_F(EngineSumsTest, AnAssignmentSendsTheBlocksAsIntegers) {
  StartSums();
  TestKey& key = AddKey({0, 0});
  OpenStream(Terms());
  Push(key);
  Run();
  const std::vector<std::uint8_t> exponents = {140, 141, 142};
  Assign(1, 1, 3, exponents);
  Run();
  const auto arrived = Datagrams(kBlocks);
  ASSERT_EQ(arrived.size(), kBlocks);
  for (std::uint32_t block = 0; block < kBlocks; ++block) {
    const Arrived& one = arrived.at(1 * kBlocks + block);  // position 3 is at place 1
    EXPECT_EQ(one.packet.kind, PHUB_PACKET_PAYLOAD);
    EXPECT_EQ(one.packet.phase, 1u);
    EXPECT_EQ(one.packet.exponent, exponents[block]);
    const std::span<const float> values = BlockOf(key, 1, block);
    std::vector<std::int32_t> expected(values.size());
    aggregation::ToFixed(values, exponents[block], kRanks, expected);
    EXPECT_EQ(one.integers, expected);
  }
  EXPECT_NE(engine_->NextTimer(), std::numeric_limits<TimeNs>::max());  // it will ask again
  Reply(0, 1, 1, 7.0f);
  Reply(0, 0, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
}

TEST_F(EngineSumsTest, AChunkIsPushedIfTheCoreLoopAsksForIt) {
  StartSums();
  TestKey& key = AddKey({0, 0});
  OpenStream(Terms());
  Push(key);
  EXPECT_EQ(Kinds(RunAndTake()), (Numbers{kAnnounced, kAnnounced}));
  UseTcp(1, 1);
  const auto posted = RunAndTake();
  ASSERT_EQ(Kinds(posted), Numbers{kPushed});
  EXPECT_EQ(posted[0].header.chunk.value, 1u);
  EXPECT_EQ(posted[0].header.slot.value, 0u);
  EXPECT_EQ(posted[0].bytes.size(), kChunkBytes);
  UseTcp(1, 1);  // again, which changes nothing
  EXPECT_TRUE(RunAndTake().empty());
  Reply(0, 0, 1, 7.0f);
  Reply(0, 1, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  EXPECT_EQ(engine_->free_slots(0), 1u);
}

TEST_F(EngineSumsTest, WhatIsNotSummedWhenTheStreamEndsIsPushed) {
  StartSums(/*slots=*/4);
  TestKey& key = AddKey({0, 0, 0});
  OpenStream(Terms());
  Push(key);
  Run();
  Assign(1, 1, 0, {150, 150, 150});
  Reply(0, 2, 1, 7.0f);
  Run();
  Datagrams(kBlocks);
  transport_.TakePosted();
  CloseStream();
  EXPECT_EQ(Chunks(RunAndTake()), (Numbers{0, 1}));
  Reply(0, 0, 1, 7.0f);
  Reply(0, 1, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
  Push(key);
  EXPECT_EQ(Chunks(RunAndTake()), (Numbers{0, 1, 2}));
}

TEST_F(EngineSumsTest, ANewLaneAnnouncesAgainAndPushesAgain) {
  StartSums(/*slots=*/4);
  TestKey& key = AddKey({0, 0, 0});
  OpenStream(Terms());
  Push(key);
  Run();
  UseTcp(2, 1);
  Assign(0, 1, 0, {150, 150, 150});
  Run();
  transport_.TakePosted();
  transport_.Break(0, transport::TransportError::kReset);
  Run();
  Attach(0);
  EXPECT_EQ(Kinds(RunAndTake()), (Numbers{kAnnounced, kAnnounced, kPushed}));
  OpenStream(Terms(), 1);
  Assign(0, 1, 0, {150, 150, 150}, 1);  // the core loop says it again
  EXPECT_TRUE(RunAndTake().empty());
  EXPECT_EQ(Datagrams(kBlocks).size(), kBlocks);
  for (std::uint32_t chunk = 0; chunk < 3; ++chunk) Reply(1, chunk, 1, 7.0f);
  Run();
  EXPECT_EQ(key.rounds.complete_count, 1);
}

TEST_F(EngineSumsTest, ARoundThatIsWithdrawnWasNeverAnnounced) {
  StartSums();
  TestKey& key = AddKey({0});
  OpenStream(Terms());
  Run();
  transport_.SetPostLimit(0);
  Push(key);
  Run();
  Submit(CancelCommand(key));
  Run();
  ASSERT_EQ(key.rounds.cancels.size(), 1u);
  EXPECT_TRUE(key.rounds.cancels[0].second);
  transport_.SetPostLimit(SIZE_MAX);
  Push(key);
  const auto posted = RunAndTake();
  EXPECT_EQ(Kinds(posted), Numbers{kAnnounced});
  EXPECT_EQ(posted[0].header.iteration.value, 1u);
}

TEST_F(EngineSumsTest, OtherRoundsGoOverTcp) {
  StartSums(/*slots=*/4);
  TestKey& summed = AddKey({0});
  TestKey& collective = AddKey({0}, 0, {}, 0, /*collective=*/true);
  OpenStream(Terms());
  Command broadcast = PushCommand(summed);
  broadcast.operation = wire::RoundOperation::kAssign;
  Submit(broadcast);
  Push(collective);
  EXPECT_EQ(Kinds(RunAndTake()), (Numbers{kPushed, kPushed}));
  Reply(0, 0, 1, 7.0f);
  Run();
  Push(summed);
  EXPECT_EQ(Kinds(RunAndTake()), Numbers{kAnnounced});
}

TEST_F(EngineSumsTest, AnnouncementsWaitForRoomInTheTransport) {
  StartSums();
  TestKey& key = AddKey({0, 0, 0});
  OpenStream(Terms());
  Run();
  transport_.SetPostLimit(2);
  Push(key);
  engine_->RunOnce();
  EXPECT_EQ(Kinds(transport_.TakePosted()), (Numbers{kAnnounced, kAnnounced}));
  Run();
  const auto posted = transport_.TakePosted();
  ASSERT_EQ(Kinds(posted), Numbers{kAnnounced});
  EXPECT_EQ(posted[0].header.chunk.value, 2u);
}

TEST_F(EngineSumsTest, AMessageThatCannotBeClosesTheLane) {
  struct Case {
    const char* name;
    LaneFault fault;
    std::function<void(EngineSumsTest&)> send;
  };
  const auto terms = [](auto change) {
    return [change](EngineSumsTest& test) {
      aggregation::StreamTerms changed = test.Terms(kLease + 1);
      change(changed);
      test.OpenStream(changed);
    };
  };
  using Terms = aggregation::StreamTerms;
  const Case cases[] = {
      {"ranks", LaneFault::kStream, terms([](Terms& t) { t.worker_count = 3; })},
      {"block", LaneFault::kStream, terms([](Terms& t) { t.count_max = 25; })},
      {"geometry", LaneFault::kStream, terms([](Terms& t) { t.geometry.positions = 4; })},
      {"garbage", LaneFault::kStream,
       [](EngineSumsTest& test) {
         test.transport_.Deliver(0, test.StreamHeader(MessageKind::kStreamIs, 0),
                                 std::vector<std::byte>(9));
       }},
      {"chunk", LaneFault::kChunkRange,
       [](EngineSumsTest& test) {
         test.Assign(9, 1, 0, {150, 150, 150});
       }},
      {"chunk over tcp", LaneFault::kChunkRange, [](EngineSumsTest& test) { test.UseTcp(9, 1); }},
      {"exponents", LaneFault::kStream,
       [](EngineSumsTest& test) {
         test.Assign(0, 1, 0, {150, 150});
       }},
      {"a lower exponent", LaneFault::kStream,
       [](EngineSumsTest& test) {
         test.Assign(0, 1, 0, {1, 150, 150});
       }},
      {"not announced", LaneFault::kNotAsked, [](EngineSumsTest& test) {
         test.Assign(0, 2, 0, {150, 150, 150});
       }}};
  for (const Case& each : cases) {
    class Made final : public EngineSumsTest {
      void TestBody() override {}
    } test;
    test.StartSums();
    TestKey& key = test.AddKey({0});
    test.OpenStream(test.Terms());
    test.Push(key);
    test.Run();
    each.send(test);
    test.Run();
    ASSERT_EQ(test.lanes_.closed_lanes.size(), 1u) << each.name;
    EXPECT_EQ(test.lanes_.closed_lanes[0].fault, each.fault) << each.name;
  }
}

TEST_F(EngineSumsTest, AJobWithoutSocketsRefusesStreams) {
  Start(1, 1);
  Run();
  OpenStream(Terms());
  Run();
  ASSERT_EQ(lanes_.closed_lanes.size(), 1u);
  EXPECT_EQ(lanes_.closed_lanes[0].fault, LaneFault::kUnexpectedKind);
}

}  // namespace
}  // namespace phub::client
