// The core loop's measurements of exchanges between racks, exact to the nanosecond.
#include "tests/unit/server/core/core_loop_racks_fixture.h"

namespace phub::server {
namespace {

// Rack 1: chunk `up` goes to rack 2, `other` to rack 0, `own` is at home here.
class CoreLoopRackMeasures : public CoreLoopRacks {
 protected:
  static constexpr std::uint64_t kBytes = kElements * sizeof(float);

  void StartMeasured() {
    StartRack(1);
    up_ = ChunkWithHome(2);
    other_ = ChunkWithHome(0);
    own_ = ChunkWithHome(1);
  }
  void PushAt(TimeNs now, std::uint32_t chunk) {
    clock_.now = now;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      transport_.Deliver(lanes_[rank], Gradient(chunk, iteration_, chunk), Filled(1));
    }
    loop_.RunOnce();
    for (const auto& posted : Posted(wire::MessageKind::kGradient)) {
      hash_ = posted.header.reply_address.value;
    }
  }
  void PartialAt(TimeNs now, std::uint32_t rack) {
    clock_.now = now;
    transport_.Deliver(peers_[rack], FromPeer(own_, iteration_, 0), Filled(2));
    loop_.RunOnce();
  }
  void ResultAt(TimeNs now, std::uint32_t rack, std::uint32_t chunk) {
    clock_.now = now;
    transport_.Deliver(peers_[rack], FromPeer(chunk, iteration_, 1), Filled(3));
    loop_.RunOnce();
  }
  const SpanMeter& Meter(ExchangeSpan span) { return exchange_->metrics.trees[0][span]; }
  const SpanMeter& MeterOf(std::uint32_t chunk, ExchangeSpan span) {
    return exchange_->metrics.trees[1 + exchange_->chunks()[chunk]->tree_index][span];
  }
  const LinkMetrics& Link(std::uint32_t rack) { return exchange_->metrics.links[rack]; }
  // In sizes of a chunk.
  void ExpectMemory(MemoryWork work, std::uint64_t read, std::uint64_t written) {
    const MemoryBytes bytes = exchange_->metrics.memory.Of(work);
    EXPECT_EQ(bytes.read, read * kBytes) << kMemoryWorkNames[static_cast<std::size_t>(work)];
    EXPECT_EQ(bytes.written, written * kBytes) << kMemoryWorkNames[static_cast<std::size_t>(work)];
  }

  std::uint32_t up_ = 0, other_ = 0, own_ = 0;
  std::uint64_t iteration_ = 1;
};

TEST_F(CoreLoopRackMeasures, StagesAreMeasuredFromTheOwnSumToTheResult) {
  StartMeasured();
  EXPECT_EQ(Meter(ExchangeSpan::kWhole).exchange_bytes(), 3 * kBytes);
  EXPECT_EQ(Meter(ExchangeSpan::kSums).exchange_bytes(), kBytes);
  EXPECT_EQ(Meter(ExchangeSpan::kResult).exchange_bytes(), 2 * kBytes);
  PushAt(100, up_);
  PushAt(130, other_);
  PushAt(150, own_);
  PartialAt(160, 0);
  PartialAt(190, 2);
  ResultAt(200, 2, up_);
  ResultAt(260, 0, other_);
  EXPECT_EQ(Meter(ExchangeSpan::kWhole).exchanges(), 1u);
  EXPECT_EQ(Meter(ExchangeSpan::kWhole).busy_ns(), 160u);
  EXPECT_EQ(Meter(ExchangeSpan::kSums).busy_ns(), 40u);
  EXPECT_EQ(Meter(ExchangeSpan::kResult).busy_ns(), 160u);
  EXPECT_EQ(MeterOf(up_, ExchangeSpan::kWhole).busy_ns(), 100u);
  EXPECT_EQ(MeterOf(other_, ExchangeSpan::kResult).busy_ns(), 130u);
  EXPECT_EQ(MeterOf(own_, ExchangeSpan::kWhole).busy_ns(), 40u);
  EXPECT_EQ(MeterOf(own_, ExchangeSpan::kResult).exchange_bytes(), 0u);
  EXPECT_EQ(Link(2).result_wait_ns.Get(), 100u);
  EXPECT_EQ(Link(0).result_wait_ns.Get(), 130u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(CoreLoopRackMeasures, WhoIsLastWasWaitedForAlone) {
  StartMeasured();
  PushAt(100, up_);
  PushAt(150, own_);
  PartialAt(160, 0);
  PartialAt(190, 2);
  EXPECT_EQ(Link(2).sums_last.Get(), 1u);
  EXPECT_EQ(Link(2).sums_awaited_ns.Get(), 30u);
  // Expect: the own ranks are reported, too, if theirs is the last part.
  iteration_ = 2;
  PartialAt(200, 2);
  PartialAt(210, 0);
  PushAt(290, own_);
  EXPECT_EQ(Link(1).sums_last.Get(), 1u);
  EXPECT_EQ(Link(1).sums_awaited_ns.Get(), 80u);
  EXPECT_EQ(Link(0).sums_last.Get(), 0u);
  EXPECT_EQ(Meter(ExchangeSpan::kSums).exchanges(), 2u);
  EXPECT_EQ(Meter(ExchangeSpan::kSums).busy_ns(), 40u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

// Its child has the result first, and sends its part of the next round before the result is here.
TEST_F(CoreLoopRackMeasures, OwnRanksAreNotWaitedForBeforeTheyHaveTheLastResult) {
  StartRack(1, "ring");
  std::uint32_t leaf = 0, middle = 0;
  const auto tree_of = [this](std::uint32_t chunk) { return exchange_->chunks()[chunk]->tree; };
  while (!tree_of(leaf)->reduce_children.empty()) ++leaf;
  while (tree_of(middle)->reduce_children.empty() || !tree_of(middle)->reduce_parent) ++middle;
  own_ = middle;
  const std::uint32_t child = tree_of(middle)->reduce_children[0].rack.value;
  PushAt(50, leaf);
  PushAt(100, middle);
  PartialAt(110, child);
  iteration_ = 2;
  PartialAt(150, child);
  iteration_ = 1;
  ResultAt(190, tree_of(middle)->gather_parent->value, middle);
  iteration_ = 2;
  PushAt(220, middle);
  EXPECT_EQ(Link(1).sums_last.Get(), 1u);
  EXPECT_EQ(Link(1).sums_awaited_ns.Get(), 30u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(CoreLoopRackMeasures, BytesOfEachLaneAreCountedUpAndDown) {
  StartMeasured();
  PushAt(100, up_);
  PushAt(150, own_);
  PartialAt(160, 0);
  PartialAt(190, 2);
  ResultAt(200, 2, up_);
  const LinkMetrics& link = Link(2);
  EXPECT_EQ(link.partials_sent.Get(), 1u);
  EXPECT_EQ(link.partial_bytes_sent.Get(), kBytes);
  EXPECT_EQ(link.partial_bytes_received.Get(), kBytes);
  EXPECT_EQ(link.results_sent.Get(), 1u);
  EXPECT_EQ(link.result_bytes_sent.Get(), kBytes);
  EXPECT_EQ(link.results_received.Get(), 1u);
  EXPECT_EQ(link.result_bytes_received.Get(), kBytes);
  EXPECT_EQ(Link(0).partials_sent.Get(), 0u);
  EXPECT_EQ(Link(0).result_bytes_sent.Get(), kBytes);
}

TEST_F(CoreLoopRackMeasures, MemoryIsCountedWhereTheWorkIsDone) {
  StartMeasured();
  PushAt(100, up_);
  ExpectMemory(MemoryWork::kLanding, 0, 2);
  ExpectMemory(MemoryWork::kSums, 2, 1);
  ExpectMemory(MemoryWork::kSending, 1, 0);
  ResultAt(200, 2, up_);
  ExpectMemory(MemoryWork::kLanding, 0, 3);
  // Rack 1 is a leaf of both trees of a star here: only the two ranks get the result.
  ExpectMemory(MemoryWork::kSending, 3, 0);
  PushAt(250, own_);
  PartialAt(260, 0);
  ExpectMemory(MemoryWork::kLanding, 0, 6);
  ExpectMemory(MemoryWork::kSums, 4, 2);
  ExpectMemory(MemoryWork::kUpdate, 0, 0);
  PartialAt(290, 2);
  ExpectMemory(MemoryWork::kLanding, 0, 7);
  ExpectMemory(MemoryWork::kSums, 4 + 3, 2 + 1);
  ExpectMemory(MemoryWork::kUpdate, 2, 1);       // the sum and the parameters; SGD has no state
  ExpectMemory(MemoryWork::kSending, 3 + 4, 0);  // to two racks and two ranks
  ExpectMemory(MemoryWork::kCopies, 0, 0);
  EXPECT_EQ(Count(CoreCounter::exchange_memory_read_bytes), (7 + 2 + 7) * kBytes);
  EXPECT_EQ(Count(CoreCounter::exchange_memory_written_bytes), (7 + 3 + 1) * kBytes);
}

// Gradients that are folded early, because their lane is full, cost another pass over the sum.
TEST_F(CoreLoopRackMeasures, AFullLaneCostsAnotherPassOverTheSum) {
  slots_per_lane_ = 1;
  StartMeasured();
  transport_.Deliver(lanes_[0], Gradient(up_, 1, 0), Filled(1));
  loop_.RunOnce();
  ExpectMemory(MemoryWork::kSums, 1, 1);
  transport_.Deliver(lanes_[1], Gradient(up_, 1, 0), Filled(1));
  loop_.RunOnce();
  ExpectMemory(MemoryWork::kSums, 1 + 2, 1 + 1);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

// Expect: the payload of an initial value is copied at the home, and no sum is counted.
TEST_F(CoreLoopRackMeasures, InitialValuesAreCopied) {
  StartMeasured();
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    wire::MessageHeader header = Gradient(own_, 1, own_);
    header.operation = wire::RoundOperation::kAssign;
    header.root = Rank{kRanks};  // rank 0 of this rack
    transport_.Deliver(lanes_[rank], header, rank == 0 ? Filled(5) : std::vector<float>{});
  }
  loop_.RunOnce();
  for (const std::uint32_t rack : {0, 2}) {
    wire::MessageHeader header = FromPeer(own_, 1, 0);
    header.operation = wire::RoundOperation::kAssign;
    header.root = Rank{kRanks};
    header.reply_address = SharedAddress{exchange::HashOf(key_.hyper_parameters)};
    transport_.Deliver(peers_[rack], header);
    loop_.RunOnce();
  }
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
  ExpectMemory(MemoryWork::kSums, 0, 0);
  ExpectMemory(MemoryWork::kUpdate, 0, 0);
  ExpectMemory(MemoryWork::kCopies, 2, 2);  // to the accumulator, and from there
  ExpectMemory(MemoryWork::kLanding, 0, 1);
}

// Expect: measured from the time when a message was ready, even if the lane's queue was full.
TEST_F(CoreLoopRackMeasures, TheTimeInALanesQueueIsMeasured) {
  StartMeasured();
  transport_.set_post_limit(0);
  PushAt(100, up_);
  transport_.set_post_limit(SIZE_MAX);
  clock_.now = 500;
  loop_.RunOnce();
  EXPECT_EQ(Link(2).messages_taken.Get(), 0u);
  clock_.now = 520;
  loop_.RunOnce();
  EXPECT_EQ(Link(2).messages_taken.Get(), 1u);
  EXPECT_EQ(Link(2).message_wait_ns.Get(), 420u);
}

}  // namespace
}  // namespace phub::server
