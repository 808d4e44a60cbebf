// Removing keys: what the core loop waits for, what it refuses, and that numbers are used again.
#include "server/core/key_removal.h"
#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

class RemovalTest : public CoreLoopTest {
 protected:
  // Key 0 with two chunks, which stays, and key 1 with two, which is removed.
  void StartTwo(std::uint32_t ranks, std::uint32_t slots = 2) {
    key_.collective = true;
    Start(ranks, slots, Optimizer::kNone, Reduction::kSum, /*chunks=*/2);
    AddSecond();
  }
  void AddSecond(std::uint32_t chunks = 2) {
    second_.key = KeyIndex{1};
    second_.collective = true;
    second_.chunks.clear();
    for (std::uint32_t i = 0; i < chunks; ++i)
      second_.chunks.push_back({kElements, i * std::uint64_t{kElements}});
    second_parameters_.assign(chunks * kElements, 0.0f);
    auto* const bytes = reinterpret_cast<std::byte*>(second_parameters_.data());
    second_.parameters = {bytes, bytes};
    second_batch_ = MakeKeyBatch(config_, {&second_, 1});
    Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = second_batch_.get()});
  }
  void Remove() {
    removal_.first_key = 1;
    Order({.kind = Command::Kind::kRemoveKeys, .shard = shard_.get(), .removal = &removal_});
  }
  // A round of a chunk, by all ranks.
  void Round(std::uint32_t chunk, std::uint64_t iteration, std::uint32_t ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      Push(rank, chunk, iteration, 0, static_cast<float>(rank + 1));
  }
  // Expect: nothing was unlinked.
  void ExpectRefused(std::uint32_t rank, std::uint32_t key) {
    const Event fault = Next(Event::Kind::kFault);
    EXPECT_EQ(fault.code, FaultCode::kKeyInUse);
    EXPECT_EQ(fault.source.rank(), Rank{rank});
    EXPECT_EQ(fault.key, KeyIndex{key});
    EXPECT_EQ(shard_->key_count, 2u);
  }
  bool Removed() { return Next(Event::Kind::kKeysRemoved).removal == &removal_; }

  KeyShardSpec second_;
  std::vector<float> second_parameters_;
  std::unique_ptr<KeyBatch> second_batch_;
  KeyRemoval removal_;
};

TEST_F(RemovalTest, ReportsAtOnceIfNothingIsSent) {
  StartTwo(2);
  Round(2, 1, 2);
  loop_.RunOnce();
  Remove();
  EXPECT_TRUE(Removed());
  EXPECT_EQ(shard_->key_count, 1u);
  EXPECT_EQ(shard_->chunk_count, 2u);
  // Expect: the other key goes on.
  Replies();
  Round(0, 1, 2);
  EXPECT_EQ(Replies().size(), 2u);
}

TEST_F(RemovalTest, WaitsUntilEveryReplyIsSent) {
  StartTwo(2);
  transport_.set_report_sent(false);
  Round(2, 1, 2);
  Remove();
  EXPECT_FALSE(Removed());
  EXPECT_EQ(shard_->chunk_count, 2u);
  // Expect: replies of other keys that are posted afterwards do not delay it.
  Round(0, 1, 2);
  transport_.set_report_sent(true);
  EXPECT_TRUE(Removed());
}

TEST_F(RemovalTest, WaitsForALostLaneThatIsNotClosedYet) {
  config_.on_loss = LossPolicy::kWait;
  StartTwo(1);
  transport_.set_report_sent(false);
  Round(2, 1, 1);
  const ConnectionId old = lanes_[0];
  // The reply on the old lane is lent until it is closed, which takes until the next polls.
  Attach(0);
  ASSERT_NE(lanes_[0], old);
  removal_.first_key = 1;
  ASSERT_TRUE(loop_.queues().commands.TryPush(
      {.kind = Command::Kind::kRemoveKeys, .shard = shard_.get(), .removal = &removal_}));
  ++ordered_;
  EXPECT_TRUE(Removed());
  EXPECT_EQ(shard_->lanes_open, 1u);
}

TEST_F(RemovalTest, RefusesARankThatHasARoundOfTheKey) {
  StartTwo(2);
  Push(1, 3, 1, 0, 1.0f);
  Remove();
  ExpectRefused(1, 1);
  // Expect: the job ends as any other.
  Order({.kind = Command::Kind::kEndJob, .shard = shard_.get()});
  EXPECT_EQ(Next(Event::Kind::kJobEnded).shard, shard_.get());
}

TEST_F(RemovalTest, RefusesARankWhoseReplyStillWaits) {
  StartTwo(2);
  transport_.set_post_limit(0);
  Round(3, 1, 2);
  loop_.RunOnce();
  ASSERT_GT(shard_->reply_backlog, 0u);
  Remove();
  ExpectRefused(0, 1);
}

TEST_F(RemovalTest, AReplyOfAnotherKeyMayWait) {
  StartTwo(2);
  transport_.set_post_limit(0);
  Round(1, 1, 2);
  loop_.RunOnce();
  ASSERT_GT(shard_->reply_backlog, 0u);
  Remove();
  EXPECT_TRUE(Removed());
}

TEST_F(RemovalTest, RefusesARankThatPushesAnotherKeyFromTheKeysMemory) {
  StartTwo(2);
  std::vector<float> shared(2 * kElements, 1.0f);
  const auto bytes = std::as_bytes(std::span(shared));
  transport_.DeliverInPlace(lanes_[1], Gradient(0, 1, 0), bytes.subspan(kElements * sizeof(float)));
  loop_.RunOnce();
  removal_.shared = {{}, {bytes}};
  Remove();
  ExpectRefused(1, 0);
}

TEST_F(RemovalTest, ALatePushOfARemovedChunkIsAFaultOfItsRank) {
  StartTwo(2);
  Remove();
  ASSERT_TRUE(Removed());
  Push(0, 2, 1, 0, 1.0f);
  EXPECT_EQ(FaultOf(), FaultCode::kChunkRange);
}

TEST_F(RemovalTest, NumbersAreUsedAgainByKeysThatStartAtTheFirstIteration) {
  StartTwo(2);
  for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) Round(2, iteration, 2);
  for (int i = 0; i < 5; ++i) {
    Remove();
    ASSERT_TRUE(Removed());
    AddSecond(static_cast<std::uint32_t>(1 + i));
    Replies();
    Round(2, 1, 2);
    ASSERT_EQ(Replies().size(), 2u);
    EXPECT_EQ(second_parameters_[0], 3.0f);
    EXPECT_EQ(shard_->chunk_count, static_cast<std::uint32_t>(3 + i));
  }
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(RemovalTest, AnEndedJobIsReportedOnceAndNotItsRemoval) {
  StartTwo(1);
  transport_.set_report_sent(false);
  Round(2, 1, 1);
  Remove();
  Order({.kind = Command::Kind::kEndJob, .shard = shard_.get()});
  Event event;
  bool ended = false;
  loop_.RunOnce();
  loop_.RunOnce();
  while (loop_.queues().events.TryPop(event)) {
    EXPECT_NE(event.kind, Event::Kind::kKeysRemoved);
    ended |= event.kind == Event::Kind::kJobEnded;
  }
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace phub::server
