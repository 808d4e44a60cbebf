// How a bandwidth limit delays work in a core loop, and which bytes are charged to it.
#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

using wire::MessageKind;
using wire::RoundOperation;

constexpr std::uint64_t kChunkBytes = kElements * sizeof(float);
constexpr std::uint64_t kBytesPerSecond = 1'000'000;
constexpr std::uint32_t kChunks = 4;

// The tenant begins with an empty bucket: the first gradient puts it into debt.
class SharesTest : public CoreLoopTest {
 protected:
  void StartLimited(std::uint32_t ranks, std::uint32_t slots) {
    config_.share.bandwidth_bytes = kBytesPerSecond;
    config_.on_loss = LossPolicy::kWait;
    Start(ranks, slots, Optimizer::kNone, Reduction::kSum, kChunks);
  }
  std::uint64_t Throttles() { return Count(CoreCounter::throttles); }
  // Advances time until the tenant is no longer throttled. Returns that duration.
  DurationNs WaitUntilPaid() {
    const TimeNs begin = clock_.now;
    while (loop_.NextTimer() != std::numeric_limits<TimeNs>::max()) {
      clock_.now = std::max(clock_.now, loop_.NextTimer());
      loop_.RunOnce();
    }
    return clock_.now - begin;
  }
  static void ExpectTimeOf(std::uint64_t bytes, DurationNs waited) {
    EXPECT_NEAR(static_cast<double>(waited), static_cast<double>(bytes) * 1e9 / kBytesPerSecond,
                20e3);
  }
  void Assign(std::uint32_t rank) {
    wire::MessageHeader header = Gradient(0, 1, 0);
    header.operation = RoundOperation::kAssign;
    transport_.Deliver(lanes_[rank], header, rank == 0 ? Filled(3) : std::vector<float>{});
    loop_.RunOnce();
  }
};

TEST_F(SharesTest, RoundsWaitUntilTheirBytesArePaid) {
  StartLimited(2, 4);
  Push(0, 0, 1, 0, 1);
  Push(1, 0, 1, 0, 1);
  EXPECT_TRUE(Replies().empty());
  ExpectTimeOf(2 * kChunkBytes, WaitUntilPaid());
  EXPECT_EQ(Replies().size(), 2u);
}

TEST_F(SharesTest, BroadcastsWaitToo) {
  StartLimited(2, 4);
  Assign(0);
  Assign(1);
  EXPECT_TRUE(Replies().empty());
  WaitUntilPaid();
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].payload, Filled(3));
}

TEST_F(SharesTest, CreditsWaitToo) {
  StartLimited(2, 1);
  Push(0, 0, 1, 0, 1);  // fills its lane, so it is folded, and the slot is free again
  EXPECT_EQ(Count(CoreCounter::gradients_folded), 1u);
  loop_.RunOnce();
  EXPECT_TRUE(Posted(MessageKind::kCredit).empty());
  WaitUntilPaid();
  EXPECT_EQ(Posted(MessageKind::kCredit).size(), 1u);
}

// A complete round that waits for its turn is not folded. If a lane is lost before the turn, the
// round waits for that rank again, which may push another chunk first.
TEST_F(SharesTest, ARoundThatIsNoLongerWholeGivesBackItsSlots) {
  StartLimited(3, 1);
  for (const std::uint32_t rank : {2u, 1u, 0u}) Push(rank, 0, 1, 0, 1);
  EXPECT_EQ(Count(CoreCounter::rounds_queued), 1u);
  EXPECT_EQ(Count(CoreCounter::gradients_folded), 0u);
  transport_.Break(lanes_[2], TransportError::kPeerClosed);
  loop_.RunOnce();
  Attach(2);
  Push(2, 1, 1, 0, 1);
  WaitUntilPaid();
  // Expect: ranks 0 and 1 may continue to push.
  EXPECT_EQ(Count(CoreCounter::gradients_folded), 2u);
  EXPECT_EQ(Posted(MessageKind::kCredit).size(), 2u);
  Push(0, 1, 1, 0, 1);
  Push(1, 1, 1, 0, 1);
  WaitUntilPaid();
  EXPECT_EQ(Replies().size(), 3u);
  Push(2, 0, 1, 0, 1);
  WaitUntilPaid();
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 3u);
  EXPECT_EQ(replies[0].payload, Filled(3));
}

TEST_F(SharesTest, AGradientThatIsRepeatedIsPaidAgain) {
  StartLimited(2, 4);
  Push(0, 0, 1, 0, 1);
  WaitUntilPaid();
  // Staged already: its slot is returned when the repetition is paid.
  Push(0, 0, 1, 1, 1);
  EXPECT_EQ(Throttles(), 2u);
  EXPECT_TRUE(Posted(MessageKind::kCredit).empty());
  WaitUntilPaid();
  EXPECT_EQ(Posted(MessageKind::kCredit).size(), 1u);
  // Applied already: the same holds for its answer.
  Push(1, 0, 1, 0, 1);
  WaitUntilPaid();
  EXPECT_EQ(Replies().size(), 2u);
  Push(0, 0, 1, 0, 1);
  EXPECT_EQ(Throttles(), 4u);
  EXPECT_TRUE(Replies().empty());
  WaitUntilPaid();
  EXPECT_EQ(Replies().size(), 1u);
}

TEST_F(SharesTest, APullIsPaidByWhatItAsksFor) {
  config_.restart = true;
  StartLimited(2, 4);
  wire::MessageHeader pull = Gradient(0, 0, 0);
  pull.kind = MessageKind::kPull;
  pull.iteration = Iteration::Max();
  transport_.Deliver(lanes_[0], pull);
  loop_.RunOnce();
  EXPECT_TRUE(Replies().empty());
  ExpectTimeOf(kChunkBytes, WaitUntilPaid());
  EXPECT_EQ(Replies().size(), 1u);
}

// A new lane has all its slots, so a worker that reconnects can push although its tenant is in
// debt.
TEST_F(SharesTest, NobodyOwesMoreThanAnIterationOfItsJobs) {
  StartLimited(2, 4);
  for (int i = 0; i < 200; ++i) {
    Push(0, 0, 1, 0, 1);
    transport_.Break(lanes_[0], TransportError::kPeerClosed);
    loop_.RunOnce();
    Attach(0);
  }
  ExpectTimeOf(2 * kChunks * kChunkBytes, WaitUntilPaid());
}

TEST_F(SharesTest, AJobMayEndWhileItsTenantOwes) {
  StartLimited(2, 4);
  Push(0, 0, 1, 0, 1);
  Push(1, 0, 1, 0, 1);
  Order({.kind = Command::Kind::kEndJob, .shard = shard_.get()});
  EXPECT_EQ(Next(Event::Kind::kJobEnded).shard, shard_.get());
  const DurationNs waited = WaitUntilPaid();  // no rank needs to wait
  EXPECT_TRUE(Replies().empty());
  // The tenant owes the debt: its next job pays.
  const std::unique_ptr<JobShard> ended = std::exchange(shard_, nullptr);
  const std::unique_ptr<KeyBatch> ended_keys = std::exchange(batch_, nullptr);
  key_.chunks.clear();
  StartLimited(2, 4);
  Push(0, 0, 1, 0, 1);
  Push(1, 0, 1, 0, 1);
  ExpectTimeOf(4 * kChunkBytes, waited + WaitUntilPaid());
  EXPECT_EQ(Replies().size(), 2u);
}

// A round that waits for its turn is not a stall, but one that waits for a rank again is.
TEST_F(SharesTest, AQueuedRoundThatLostALaneIsAStall) {
  StartLimited(2, 4);
  Push(0, 1, 1, 0, 1);
  Push(1, 1, 1, 0, 1);
  StallReport report;
  report.entries.resize(4);
  for (StallReport::Entry& entry : report.entries) entry.missing.resize(1);
  Order({.kind = Command::Kind::kReportStalls, .shard = shard_.get(), .report = &report});
  EXPECT_EQ(report.count, 0u);
  transport_.Break(lanes_[1], TransportError::kPeerClosed);
  loop_.RunOnce();
  Order({.kind = Command::Kind::kReportStalls, .shard = shard_.get(), .report = &report});
  ASSERT_EQ(report.count, 1u);
  EXPECT_EQ(report.entries[0].missing[0], 0b10u);
  // Expect: it continues where it was, once the rank is back.
  Attach(1);
  Push(1, 1, 1, 0, 1);
  WaitUntilPaid();
  EXPECT_EQ(Replies().size(), 2u);
}

}  // namespace
}  // namespace phub::server
