// Keys of groups: only members push them, sums go in ascending rank, and holes in the numbering.
#include "server/core/key_removal.h"
#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

// The order of addition decides the bits of a sum of these.
float ValueOf(std::uint32_t rank) {
  return (rank % 2 == 0 ? 1.0e8f : -1.0e8f) + 0.37f * static_cast<float>(3 * rank + 1);
}

float SerialSum(std::initializer_list<std::uint32_t> ranks) {
  float sum = 0.0f;
  for (const std::uint32_t rank : ranks)
    sum = rank == *ranks.begin() ? ValueOf(rank) : sum + ValueOf(rank);
  return sum;
}

// A job of four ranks with one key of two chunks (0 and 1), and groups with one key each.
class GroupTest : public CoreLoopTest {
 protected:
  struct Group {
    std::unique_ptr<Members> members;
    KeyShardSpec spec;
    std::vector<float> parameters;
    std::unique_ptr<KeyBatch> batch;
    KeyRemoval removal;
  };

  void StartJob(std::uint32_t slots = 4) {
    Start(4, slots, Optimizer::kNone, Reduction::kSum, /*chunks=*/2);
  }
  // `number`: the key's, counted from kGroupKeysFirst.
  Group& Add(std::initializer_list<std::uint32_t> ranks, std::uint32_t number, std::uint32_t chunk,
             std::uint32_t chunks = 1) {
    Group& group = Make(ranks, number, chunk, chunks);
    Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = group.batch.get()});
    return group;
  }
  Group& Make(std::initializer_list<std::uint32_t> ranks, std::uint32_t number, std::uint32_t chunk,
              std::uint32_t chunks = 1) {
    Group& group = *groups_.emplace_back(std::make_unique<Group>());
    std::vector<Rank> members;
    for (const std::uint32_t rank : ranks) members.push_back(Rank{rank});
    group.members = std::make_unique<Members>(members);
    group.spec.key = KeyIndex{kGroupKeysFirst + number};
    group.spec.collective = true;
    group.spec.members = group.members.get();
    group.spec.first_chunk = chunk;
    for (std::uint32_t i = 0; i < chunks; ++i)
      group.spec.chunks.push_back({kElements, i * std::uint64_t{kElements}});
    group.parameters.assign(chunks * kElements, 0.0f);
    auto* const bytes = reinterpret_cast<std::byte*>(group.parameters.data());
    group.spec.parameters = {bytes, bytes};
    group.batch = MakeKeyBatch(config_, {&group.spec, 1});
    return group;
  }
  bool Remove(Group& group) {
    group.removal.group = group.members.get();
    Order({.kind = Command::Kind::kRemoveKeys, .shard = shard_.get(), .removal = &group.removal});
    return Next(Event::Kind::kKeysRemoved).removal == &group.removal;
  }
  void PushOwn(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration,
               std::uint32_t slot = 0) {
    Push(rank, chunk, iteration, slot, ValueOf(rank));
  }

  std::vector<std::unique_ptr<Group>> groups_;
};

TEST_F(GroupTest, MembersSumInAscendingRankAndOnlyTheyAreAnswered) {
  StartJob();
  Add({1, 3}, 0, 2);
  PushOwn(3, 2, 1);
  EXPECT_TRUE(Replies().empty());
  PushOwn(1, 2, 1);
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  for (const auto& reply : replies) {
    EXPECT_EQ(reply.payload, Filled(SerialSum({1, 3})));
    EXPECT_TRUE(reply.connection == lanes_[1] || reply.connection == lanes_[3]);
    EXPECT_EQ(reply.header.key, KeyIndex{kGroupKeysFirst});
  }
  // Expect: a key of the whole job still needs every rank.
  for (const std::uint32_t rank : {0u, 1u, 3u}) PushOwn(rank, 0, 1);
  EXPECT_TRUE(Replies().empty());
  PushOwn(2, 0, 1);
  EXPECT_EQ(Replies().size(), 4u);
  EXPECT_EQ(FaultOf(), FaultCode::kNone);
}

TEST_F(GroupTest, AMeanDividesByTheMembers) {
  StartJob();
  Group& group = Add({0, 2}, 0, 2);
  ASSERT_TRUE(Remove(group));
  group.spec.reduction = Reduction::kMean;
  group.batch = MakeKeyBatch(config_, {&group.spec, 1});
  Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = group.batch.get()});
  Push(0, 2, 1, 0, 1.0f);
  Push(2, 2, 1, 0, 4.0f);
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].payload, Filled(2.5f));
}

TEST_F(GroupTest, ARankThatIsNotAMemberIsRefused) {
  StartJob();
  Add({1, 3}, 0, 2);
  PushOwn(1, 2, 1);
  PushOwn(2, 2, 1);
  const Event fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, FaultCode::kNotMember);
  EXPECT_EQ(fault.source.rank(), Rank{2});
  EXPECT_EQ(fault.key, KeyIndex{kGroupKeysFirst});
  EXPECT_EQ(Count(CoreCounter::refused_member), 1u);
}

TEST_F(GroupTest, ARankThatIsNotAMemberAnnouncesNoHyperParameters) {
  StartJob();
  Add({1, 3}, 0, 2);
  wire::MessageHeader header = Gradient(0, 0, 0);
  header.key = KeyIndex{kGroupKeysFirst};
  header.hyper_version = HyperVersion{2};
  transport_.DeliverHyperParameters(lanes_[0], header, {});
  EXPECT_EQ(FaultOf(), FaultCode::kNotMember);
}

TEST_F(GroupTest, ARootThatIsNotAMemberIsRefused) {
  StartJob();
  Add({1, 3}, 0, 2);
  wire::MessageHeader header = Gradient(2, 1, kNoSlot.value);
  header.operation = wire::RoundOperation::kAssign;
  header.root = Rank{2};
  transport_.Deliver(lanes_[1], header, {});
  EXPECT_EQ(FaultOf(), FaultCode::kRoundMismatch);
}

TEST_F(GroupTest, ABroadcastTakesThePayloadOfItsRoot) {
  StartJob();
  Add({1, 3}, 0, 2);
  wire::MessageHeader header = Gradient(2, 1, kNoSlot.value);
  header.operation = wire::RoundOperation::kAssign;
  header.root = Rank{3};
  transport_.Deliver(lanes_[1], header, {});
  header.slot = SlotIndex{0};
  transport_.Deliver(lanes_[3], header, Filled(7.0f));
  loop_.RunOnce();
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].payload, Filled(7.0f));
}

// Rank 0 pushes X and then Y, rank 1 pushes Y and then X, with one slot on each lane.
TEST_F(GroupTest, CrossedOrdersOfTwoGroupsEndWithOneSlot) {
  StartJob(/*slots=*/1);
  Add({0, 1, 2}, 0, 2);
  Add({0, 1}, 1, 3);
  PushOwn(0, 2, 1);
  PushOwn(1, 3, 1);
  PushOwn(2, 2, 1);
  // Expect: rank 0's gradient of X was folded, so it has a free slot for Y.
  ASSERT_EQ(Posted(wire::MessageKind::kCredit).size(), 1u);
  PushOwn(0, 3, 1);
  EXPECT_EQ(Replies().size(), 2u);
  PushOwn(1, 2, 1);
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 3u);
  EXPECT_EQ(replies[0].payload, Filled(SerialSum({0, 1, 2})));
}

// Members 1 and 3: the first of them is folded, although it is not rank 0.
TEST_F(GroupTest, TheFirstMemberIsFoldedWhenItsLaneIsFull) {
  StartJob(/*slots=*/1);
  Add({1, 3}, 0, 2);
  Add({1, 3}, 1, 3);
  PushOwn(3, 3, 1);
  PushOwn(1, 2, 1);
  const auto credits = Posted(wire::MessageKind::kCredit);
  ASSERT_EQ(credits.size(), 1u);
  EXPECT_EQ(credits[0].connection, lanes_[1]);
  PushOwn(1, 3, 1);
  EXPECT_EQ(Replies().size(), 2u);
  PushOwn(3, 2, 1);
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].payload, Filled(SerialSum({1, 3})));
}

TEST_F(GroupTest, ALostLaneGivesBackWhatItStagedInGroups) {
  config_.on_loss = LossPolicy::kWait;
  StartJob();
  Add({1, 3}, 0, 2);
  Add({0, 2}, 1, 3);
  PushOwn(1, 2, 1);
  PushOwn(0, 3, 1);
  Attach(1);
  EXPECT_EQ(shard_->lanes[1].slots_used, 0u);
  PushOwn(3, 2, 1);
  EXPECT_TRUE(Replies().empty());
  PushOwn(1, 2, 1);
  EXPECT_EQ(Replies().size(), 2u);
  PushOwn(2, 3, 1);
  EXPECT_EQ(Replies().size(), 2u);
}

TEST_F(GroupTest, ARankThatLeftIsMissedOnlyByItsGroups) {
  StartJob();
  Add({1, 3}, 0, 2);
  Add({0, 2}, 1, 3);
  PushOwn(0, 3, 1);
  Order({.kind = Command::Kind::kRankLeft, .rank = Rank{3}, .shard = shard_.get()});
  PushOwn(2, 3, 1);
  EXPECT_EQ(Replies().size(), 2u);
  PushOwn(1, 2, 1);
  const Event fault = Next(Event::Kind::kFault);
  EXPECT_EQ(fault.code, FaultCode::kDepartedRank);
  EXPECT_EQ(fault.source.rank(), Rank{3});
  EXPECT_EQ(fault.other.rank(), Rank{1});
}

TEST_F(GroupTest, AStallReportNamesOnlyMembers) {
  StartJob();
  Add({1, 3}, 0, 2);
  PushOwn(1, 2, 1);
  StallReport report;
  report.entries.resize(4);
  for (StallReport::Entry& entry : report.entries) entry.missing.resize(1);
  Order({.kind = Command::Kind::kReportStalls, .shard = shard_.get(), .report = &report});
  ASSERT_EQ(report.count, 1u);
  EXPECT_EQ(report.entries[0].key, KeyIndex{kGroupKeysFirst});
  EXPECT_EQ(report.entries[0].missing[0], 1u << 3);
}

TEST_F(GroupTest, ARemovedGroupLeavesAHoleThatALaterGroupFills) {
  StartJob();
  Group& first = Add({0, 1}, 0, 2, /*chunks=*/2);
  Add({1, 3}, 1, 4);
  PushOwn(1, 4, 1);
  ASSERT_TRUE(Remove(first));
  EXPECT_EQ(shard_->chunk_count, 5u);
  EXPECT_EQ(shard_->FindKey(KeyIndex{kGroupKeysFirst}), nullptr);
  // Expect: the later group goes on, and a new one starts at its first iteration in the hole.
  PushOwn(3, 4, 1);
  EXPECT_EQ(Replies().size(), 2u);
  Add({2, 3}, 0, 2);
  PushOwn(2, 2, 1);
  PushOwn(3, 2, 1);
  EXPECT_EQ(Replies().size(), 2u);
  // Expect: the number that is still free is nobody's.
  PushOwn(0, 3, 1);
  EXPECT_EQ(FaultOf(), FaultCode::kChunkRange);
}

TEST_F(GroupTest, KeysAreAddedWhileAGroupIsRemoved) {
  StartJob();
  Group& old = Add({0, 1}, 0, 2);
  Group& next = Make({0, 1}, 1, 3);
  old.removal.group = old.members.get();
  for (const Command& command :
       {Command{.kind = Command::Kind::kRemoveKeys, .shard = shard_.get(), .removal = &old.removal},
        Command{
            .kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = next.batch.get()}}) {
    ASSERT_TRUE(loop_.queues().commands.TryPush(command));  // executed in one turn
    ++ordered_;
  }
  loop_.RunOnce();
  EXPECT_EQ(Next(Event::Kind::kKeysRemoved).removal, &old.removal);
  EXPECT_EQ(shard_->FindKey(KeyIndex{kGroupKeysFirst}), nullptr);
  PushOwn(0, 3, 1);
  PushOwn(1, 3, 1);
  EXPECT_EQ(Replies().size(), 2u);
}

TEST_F(GroupTest, MakingAndRemovingGroupsDoesNotGrow) {
  StartJob();
  Group& stays = Add({2, 3}, 1, 3);
  for (int i = 0; i < 200; ++i) {
    Group& group = Add({0, 1}, 0, 2);
    Group& last = Add({0, 3}, 2, 4);
    PushOwn(0, 2, 1);
    PushOwn(1, 2, 1);
    ASSERT_EQ(Replies().size(), 2u);
    ASSERT_TRUE(Remove(group));
    ASSERT_TRUE(Remove(last));
    ASSERT_EQ(shard_->chunk_count, 4u);
    ASSERT_EQ(shard_->group_key_end, 2u);
    groups_.resize(1);
  }
  ASSERT_TRUE(Remove(stays));
  EXPECT_EQ(shard_->chunk_count, 2u);
  EXPECT_EQ(shard_->group_key_end, 0u);
}

TEST_F(GroupTest, AKeyOfTheJobMayFollowAGroup) {
  StartJob();
  Group& group = Add({0, 1}, 0, 2);
  KeyShardSpec spec;
  spec.key = KeyIndex{1};
  spec.collective = true;
  spec.chunks.push_back({kElements, 0});
  std::vector<float> parameters(kElements);
  auto* const bytes = reinterpret_cast<std::byte*>(parameters.data());
  spec.parameters = {bytes, bytes};
  const std::unique_ptr<KeyBatch> batch = MakeKeyBatch(config_, {&spec, 1});
  Order({.kind = Command::Kind::kAddKeys, .shard = shard_.get(), .batch = batch.get()});
  ASSERT_TRUE(Remove(group));
  for (std::uint32_t rank = 0; rank < 4; ++rank) PushOwn(rank, 3, 1);
  EXPECT_EQ(Replies().size(), 4u);
  KeyRemoval removal;
  removal.first_key = 1;
  Order({.kind = Command::Kind::kRemoveKeys, .shard = shard_.get(), .removal = &removal});
  EXPECT_EQ(Next(Event::Kind::kKeysRemoved).removal, &removal);
  EXPECT_EQ(shard_->chunk_count, 2u);
}

TEST_F(GroupTest, AGroupThatARankStillPushesIsNotRemoved) {
  StartJob();
  Group& group = Add({0, 1}, 0, 2);
  PushOwn(1, 2, 1);
  EXPECT_FALSE(Remove(group));
  EXPECT_NE(shard_->FindKey(KeyIndex{kGroupKeysFirst}), nullptr);
}

}  // namespace
}  // namespace phub::server
