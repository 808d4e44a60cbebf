// A core loop and a job whose rounds an aggregator sums. The test acts as the workers, the
// aggregator and control.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "common/aggregation/fixed_point.h"
#include "common/aggregation/stream_terms.h"
#include "server/core/shard_sums.h"
#include "tests/support/allocation_counter.h"
#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {

using wire::MessageKind;

inline constexpr std::uint32_t kBlock = 24;  // a chunk of 64 elements has blocks of 24, 24 and 16
inline constexpr std::uint32_t kBlocks = 3;
inline constexpr std::uint32_t kLease = 5;

// Hands over the sums that the test has put there.
class ScriptedSumPort final : public SumPort {
 public:
  explicit ScriptedSumPort(aggregation::CoreStream& stream) : stream_(stream) {}
  void Open(const phub_lease& /*lease*/) override {}
  void SendParameters(const phub_parameters& about, std::span<const std::byte> bytes,
                      std::uint8_t worker) override {
    if (keep_sent) sent.push_back({about, {bytes.begin(), bytes.end()}, worker});
  }
  void Flush() override {}
  void NoteAssigned(aggregation::Position position, TimeNs /*now*/) override {
    last_assigned = position;
  }
  std::uint32_t AskAgain(TimeNs now) override {
    asked_at = now;
    return now >= next_question ? 1 : 0;
  }
  TimeNs deadline() const override { return next_question; }
  bool Receive(TimeNs /*now*/, const OnSum& on_sum) override {
    if (count_ == 0) return false;
    for (std::size_t i = 0; i < count_; ++i) {
      actions_.clear();
      last = stream_.Sum(sums_[i].packet, actions_);
      on_sum(actions_, std::span(sums_[i].integers).first(sums_[i].packet.count),
             sums_[i].packet.exponent);
    }
    count_ = 0;
    return true;
  }
  void Put(const phub_packet& packet, std::span<const std::int32_t> integers) {
    sums_[count_].packet = packet;
    std::ranges::copy(integers, sums_[count_++].integers.begin());
  }

  struct Sent {
    phub_parameters about{};
    std::vector<std::byte> bytes;
    std::uint8_t worker = 0;
  };
  std::vector<Sent> TakeSent() { return std::exchange(sent, {}); }

  aggregation::SumVerdict last{};
  aggregation::Position last_assigned = aggregation::Position::Max();
  TimeNs asked_at = -1;
  TimeNs next_question = std::numeric_limits<TimeNs>::max();
  std::vector<Sent> sent;  // blocks of parameters
  bool keep_sent = true;

 private:
  struct Sum {
    phub_packet packet{};
    std::array<std::int32_t, kElements> integers{};
  };
  aggregation::CoreStream& stream_;
  aggregation::CoreActions actions_ = [] {
    aggregation::CoreActions actions;
    actions.reserve(8);
    return actions;
  }();
  std::array<Sum, 64> sums_;
  std::size_t count_ = 0;
};

using Numbers = std::vector<float>;

class SumsTest : public CoreLoopTest {
 public:
  using CoreLoopTest::Count;
  using CoreLoopTest::FaultOf;
  using CoreLoopTest::lanes_;
  using CoreLoopTest::loop_;
  using CoreLoopTest::Replies;
  using CoreLoopTest::transport_;

  void StartSums(std::uint32_t ranks = 2, Optimizer optimizer = Optimizer::kSgd,
                 std::uint32_t chunks = 4) {
    config_.incarnation = Incarnation{77};
    config_.sum_block = kBlock;
    config_.on_loss = LossPolicy::kWait;
    endpoint_.SetVersion(wire::kLaneVersion);
    // As Start(), but the shard has sums when the loop gets it.
    ranks_ = ranks;
    Start(ranks, 4, optimizer, Reduction::kMean, chunks);
  }
  void OnShard() override {
    if (!has_sums_) return;
    shard_->sums = std::make_unique<ShardSums>(aggregation::Geometry{2, kBlocks}, kBlock, ranks_);
    auto port = std::make_unique<ScriptedSumPort>(shard_->sums->stream);
    port_ = port.get();
    shard_->sums->port = std::move(port);
  }
  void Open(std::uint32_t number = kLease) {
    lease_.number = number;
    lease_.worker_count = static_cast<__u8>(ranks_);
    lease_.count_max = kBlock;
    lease_.aggregator.address[1] = 1;
    lease_.aggregator.port = 77;
    Order({.kind = Command::Kind::kOpenStream, .shard = shard_.get(), .lease = &lease_});
  }
  void Close() { Order({.kind = Command::Kind::kCloseStream, .shard = shard_.get()}); }

  static std::size_t FirstOf(std::uint32_t block) { return std::size_t{block} * kBlock; }
  static std::span<const float> BlockOf(const Numbers& numbers, std::uint32_t block) {
    return std::span(numbers).subspan(FirstOf(block)).first(block + 1 < kBlocks ? kBlock : 16);
  }
  // A gradient whose blocks have different exponents.
  static Numbers Gradient(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration) {
    Numbers numbers(kElements);
    for (std::uint32_t i = 0; i < kElements; ++i) {
      const int exponent = static_cast<int>((i / kBlock + rank * 3 + iteration) % 5) - 2;
      numbers[i] = std::ldexp(1.0f + 0.01f * static_cast<float>(i + 7 * rank + chunk), exponent) *
                   (i % 3 == 0 ? -1.0f : 1.0f);
    }
    return numbers;
  }
  wire::MessageHeader Pushed(std::uint32_t chunk, std::uint64_t iteration, std::uint32_t slot) {
    return CoreLoopTest::Gradient(chunk, iteration, slot);
  }
  wire::MessageHeader Announcement(std::uint32_t chunk, std::uint64_t iteration,
                                   std::uint32_t lease = kLease) {
    wire::MessageHeader header = CoreLoopTest::Gradient(chunk, iteration, lease);
    header.version = wire::kStreamVersion;
    header.kind = MessageKind::kAnnounce;
    return header;
  }
  void DeliverAnnouncement(std::uint32_t rank, const wire::MessageHeader& header,
                           const Numbers& numbers) {
    std::array<std::byte, kBlocks> exponents;
    for (std::uint32_t block = 0; block < kBlocks; ++block)
      exponents[block] = std::byte{aggregation::ExponentOf(BlockOf(numbers, block))};
    transport_.DeliverInline(lanes_[rank], header, exponents);
    const std::size_t before = testing::AllocationCount();
    loop_.RunOnce();
    allocated_ += testing::AllocationCount() - before;
  }
  void Announce(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration,
                std::uint32_t lease = kLease) {
    DeliverAnnouncement(rank, Announcement(chunk, iteration, lease),
                        Gradient(rank, chunk, iteration));
  }
  void PushTcp(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration,
               std::uint32_t slot) {
    transport_.Deliver(lanes_[rank], CoreLoopTest::Gradient(chunk, iteration, slot),
                       Gradient(rank, chunk, iteration));
    loop_.RunOnce();
  }
  // What the aggregator sends about a block of all ranks' gradients.
  void Sum(std::uint32_t chunk, std::uint64_t iteration, std::uint64_t position,
           std::uint32_t block) {
    std::uint8_t exponent = 0;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank)
      exponent =
          std::max(exponent, aggregation::ExponentOf(BlockOf(Of(rank, chunk, iteration), block)));
    std::array<std::int32_t, kBlock> sum{}, fixed{};
    std::size_t count = 0;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      const Numbers& numbers = Of(rank, chunk, iteration);
      const std::span<const float> values = BlockOf(numbers, block);
      count = values.size();
      aggregation::ToFixed(values, exponent, ranks_, std::span(fixed).first(count));
      for (std::size_t i = 0; i < count; ++i) sum[i] += fixed[i];
    }
    phub_packet packet{};
    packet.lease = lease_.number;
    packet.slot = static_cast<__u16>(position % 2 * kBlocks + block);
    packet.phase = static_cast<__u32>(position / 2);
    packet.exponent = exponent;
    packet.count = static_cast<__u16>(count);
    port_->Put(packet, std::span(sum).first(count));
  }
  void SumAll(std::uint32_t chunk, std::uint64_t iteration, std::uint64_t position) {
    for (std::uint32_t block = 0; block < kBlocks; ++block) Sum(chunk, iteration, position, block);
    loop_.RunOnce();
  }
  const Numbers& Of(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration) {
    numbers_ = Gradient(rank, chunk, iteration);
    if (rank == bad_rank_) numbers_[30] = std::numeric_limits<float>::quiet_NaN();
    return numbers_;
  }
  // The blocks of a version, in order, which were sent to that worker.
  static void ExpectVersion(const std::vector<ScriptedSumPort::Sent>& sent, std::uint32_t chunk,
                            std::uint64_t iteration, const Numbers& parameters,
                            std::uint8_t worker = PHUB_EVERY_WORKER) {
    ASSERT_EQ(sent.size(), kBlocks);
    for (std::uint32_t block = 0; block < kBlocks; ++block) {
      EXPECT_EQ(sent[block].about.chunk, chunk);
      EXPECT_EQ(sent[block].about.version, iteration);
      EXPECT_EQ(sent[block].about.block, block);
      EXPECT_EQ(sent[block].worker, worker);
      const auto expected = std::as_bytes(BlockOf(parameters, block));
      EXPECT_TRUE(std::ranges::equal(sent[block].bytes, expected)) << "block " << block;
    }
  }
  // A bit for each block; none: over tcp.
  void AskForBlocks(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration,
                    std::span<const std::byte> blocks) {
    wire::MessageHeader header = CoreLoopTest::Gradient(chunk, iteration, 0);
    header.version = wire::kStreamVersion;
    header.kind = MessageKind::kMissing;
    transport_.DeliverInline(lanes_[rank], header, blocks);
    loop_.RunOnce();
  }
  Numbers Parameters(std::uint32_t chunk) const {
    Numbers numbers(kElements);
    std::memcpy(numbers.data(), parameters_[0].data() + chunk * kElements * sizeof(float),
                kElements * sizeof(float));
    return numbers;
  }
  std::vector<std::uint32_t> Kinds() {
    std::vector<std::uint32_t> kinds;
    for (const auto& posted : transport_.TakePosted())
      kinds.push_back(static_cast<std::uint32_t>(posted.header.kind));
    return kinds;
  }

  std::uint32_t ranks_ = 2;
  bool has_sums_ = true;
  std::uint32_t bad_rank_ = UINT32_MAX;
  std::size_t allocated_ = 0;  // by announcements
  phub_lease lease_{};
  ScriptedSumPort* port_ = nullptr;
  Numbers numbers_;
};

class Sums final : public SumsTest {
  void TestBody() override {}
};

inline constexpr auto kStream = static_cast<std::uint32_t>(MessageKind::kStreamIs);
inline constexpr auto kAssigned = static_cast<std::uint32_t>(MessageKind::kAssign);
inline constexpr auto kTcp = static_cast<std::uint32_t>(MessageKind::kUseTcp);

}  // namespace phub::server
