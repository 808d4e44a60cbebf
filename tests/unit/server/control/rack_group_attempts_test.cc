// Batches of groups of several racks from the request to rack 0's decision: plans are made without
// the lock, and a batch that one rack cannot add is refused in all of them while the job goes on.
#include "server/core/exchange/shard_exchange.h"
#include "tests/unit/server/control/fake_prefaulter.h"
#include "tests/unit/server/control/held_background.h"
#include "tests/unit/server/control/rack_groups_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = v1::PeerMessage::MessageCase;

class GroupAttemptsTest : public RackGroupsTest {
 protected:
  // Rack 2 may have so many keys.
  void LimitKeys(std::optional<std::uint32_t> keys) {
    node(2).control().tenants().SetTenant({.name = kDefaultTenant, .quota = {.keys = keys}});
  }
  CallPtr<v1::AddKeysResponse> Begin(std::uint32_t rank, const std::vector<std::uint32_t>& ranks,
                                     const std::vector<v1::KeySpec>& keys,
                                     std::uint32_t batch = 0) {
    return NodeOf(rank).AddKeys(RequestOf(rank, ranks, keys, batch));
  }
};

TEST_F(GroupAttemptsTest, ABatchThatARackCannotAddIsRefusedInAllRacksAndTheJobGoesOn) {
  EnterAll();
  const std::vector<v1::KeySpec> two = {Collective("a"), Collective("b")};
  LimitKeys(1);
  const std::vector<std::uint64_t> before = MemoryOfRacks();
  const auto one = Begin(1, {1, 4}, two);
  const auto other = Begin(4, {1, 4}, two);
  Settle();
  for (const auto& call : {one, other}) {
    ASSERT_TRUE(call->answered());
    EXPECT_EQ(call->code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(
        call->message(),
        AllOf(HasSubstr("rack 2 (node2:7700) cannot add the keys of group pair (ranks 1, 4)"),
              HasSubstr("adds 2 keys, 1 too many")));
  }
  ExpectNoFault();
  EXPECT_EQ(MemoryOfRacks(), before);
  EXPECT_TRUE(AddedAt(0).empty());
  // Expect: a new try has the names and numbers of the refused one.
  LimitKeys({});
  for (const std::uint32_t rank : {4u, 1u}) {
    const auto again = Add(rank, {1, 4}, two);
    ASSERT_TRUE(again->ok()) << again->message();
    EXPECT_EQ(again->response.placements(0).key_index(), kGroupKeysFirst);
  }
  EXPECT_EQ(AddedAt(0).back().batch->exchange->first_number, exchange::kGroupNumbersFirst);
  Leave({0, 1, 2, 3, 4, 5});
  ExpectNothingLeft();
}

TEST_F(GroupAttemptsTest, ALaterBatchThatIsRefusedLeavesTheGroupAsItWas) {
  EnterAll();
  ASSERT_TRUE(Add(4, {1, 4}, {Collective("a")})->ok());
  ASSERT_TRUE(Add(1, {1, 4}, {Collective("a")})->ok());
  const std::vector<std::uint64_t> before = MemoryOfRacks();
  LimitKeys(1);
  v1::KeySpec urgent = Collective("b", 70'000);
  urgent.set_priority_class(v1::PRIORITY_CLASS_TENSOR);
  const auto refused = Add(1, {1, 4}, {urgent}, 1);
  EXPECT_THAT(refused->message(), HasSubstr("rack 2 (node2:7700) cannot add the keys"));
  EXPECT_EQ(MemoryOfRacks(), before);
  v1::GetJobRequest request;
  request.set_job("digits");
  const v1::GroupInfo shown = node(0).GetJob(request)->response.groups(0);
  EXPECT_EQ(shown.key_count(), 1u);
  EXPECT_THAT(shown.priority_classes(), ::testing::ElementsAre("data"));
  LimitKeys({});
  for (const std::uint32_t rank : {4u, 1u})
    ASSERT_TRUE(Add(rank, {1, 4}, {Collective("b", 70'000)}, 1)->ok());
  // Expect: both racks place the chunks, and choose their trees, alike.
  const KeyBatch& here = *AddedAt(0).back().batch;
  const KeyBatch& there = *AddedAt(2).back().batch;
  ASSERT_EQ(here.chunks.size(), there.chunks.size());
  for (std::size_t i = 0; i < here.chunks.size(); ++i)
    EXPECT_NE(here.chunks[i].is_home, there.chunks[i].is_home) << i;
  ExpectNoFault();
}

// Rack 2 asks for the batch before it hears that it refused it; rack 0 tries again meanwhile.
TEST_F(GroupAttemptsTest, ACallThatCrossesTheRefusalGetsItAndIsNoNewTry) {
  EnterAll();
  LimitKeys(0);
  node(0).network.Keep(RackIndex{2}, Kind::kGroupDecided);
  const auto first = Add(1, {1, 4}, {Collective("a")});
  EXPECT_THAT(first->message(), HasSubstr("cannot add the keys"));
  const auto crossing = Add(4, {1, 4}, {Collective("a")});
  const auto again = Add(1, {1, 4}, {Collective("a")});
  EXPECT_FALSE(crossing->answered());
  EXPECT_FALSE(again->answered());
  LimitKeys({});
  node(0).network.Keep(RackIndex{2}, std::nullopt);
  ASSERT_EQ(node(0).network.kept.size(), 1u);
  Say(0, 2, incarnation, node(0).network.kept[0]);
  Settle();
  EXPECT_THAT(crossing->message(), HasSubstr("cannot add the keys"));
  EXPECT_TRUE(again->ok()) << again->message();
  EXPECT_TRUE(Add(4, {1, 4}, {Collective("a")})->ok());
  EXPECT_EQ(AddedAt(2).size(), 1u);
  ExpectNoFault();
}

// Rank 1 removes the group before rack 2 has heard that the second batch is refused.
TEST_F(GroupAttemptsTest, AGroupIsRemovedAfterABatchWasRefused) {
  EnterAll();
  const std::vector<std::uint64_t> before = MemoryOfRacks();
  const auto there = Add(4, {1, 4}, {Collective("a")});
  const auto here = Add(1, {1, 4}, {Collective("a")});
  ASSERT_TRUE(there->ok() && here->ok());
  LimitKeys(1);
  node(0).network.Keep(RackIndex{2}, Kind::kGroupDecided);
  EXPECT_THAT(Add(1, {1, 4}, {Collective("b")}, 1)->message(), HasSubstr("cannot add the keys"));
  const auto first = Remove(1, here->response.group_id());
  ExpectNoFault();
  node(0).network.Keep(RackIndex{2}, std::nullopt);
  Say(0, 2, incarnation, node(0).network.kept[0]);
  Settle();
  const auto second = Remove(4, there->response.group_id());
  EXPECT_TRUE(first->ok() && second->ok()) << first->message() << second->message();
  EXPECT_EQ(MemoryOfRacks(), before);
  ExpectNoFault();
}

TEST_F(GroupAttemptsTest, ARackWithoutMemoryForTheKeysRefusesThem) {
  FakePrefaulter pages;
  EnterAll();
  node(2).control().host_memory().SetPrefaulter(pages);
  const auto refused = Begin(1, {1, 4}, {Collective("a")});
  Settle();
  EXPECT_FALSE(refused->answered());
  pages.SetAll(PrefaultState::kRefused);
  Settle();
  // Expect: rack 2 gives the batch back only when its memory is free.
  EXPECT_THAT(refused->message(), HasSubstr("rack 2 (node2:7700) cannot add the keys"));
  const auto waits = Begin(1, {1, 4}, {Collective("a")});
  Settle();
  EXPECT_EQ(pages.flags.size(), 1u);
  pages.unwanted = nullptr;
  EXPECT_EQ(pages.owned(), 0u);
  pages.freed->store(true);
  Settle();
  ASSERT_EQ(pages.flags.size(), 2u);
  EXPECT_FALSE(waits->answered());
  pages.SetAll(PrefaultState::kTaken);
  Settle();
  EXPECT_TRUE(waits->ok()) << waits->message();
  ExpectNoFault();
}

TEST_F(GroupAttemptsTest, OtherCallsAreAnsweredWhileThePlanIsMade) {
  HeldBackground background;
  EnterAll();
  node(0).control().turns().SetBackground(background);
  const auto wide = Begin(1, {1, 4}, {Collective("a")});
  Settle();
  ASSERT_EQ(background.pieces.size(), 1u);
  EXPECT_TRUE(Add(0, {0, 1}, {Collective("a")}, 0, "inside")->ok());
  AddToJob(0, RackNode::Key("w", 10));
  const auto same = Begin(4, {1, 4}, {Collective("a")});
  const auto next = Begin(0, {0, 2}, {Collective("a")});
  Settle();
  EXPECT_FALSE(wide->answered() || same->answered() || next->answered());
  while (background.RunOne()) Settle();
  for (const auto& call : {wide, same, next}) EXPECT_TRUE(call->ok()) << call->message();
  ExpectNoFault();
}

TEST_F(GroupAttemptsTest, AJobMayEndWhileAPlanIsMadeOrRead) {
  HeldBackground background;
  for (const std::uint32_t rack : {0u, 2u}) {
    EnterAll();
    node(rack).control().turns().SetBackground(background);
    const auto call = Begin(1, {1, 4}, {Collective("a")});
    Settle();
    ASSERT_EQ(background.pieces.size(), 1u) << rack;
    EXPECT_FALSE(call->answered());
    EvictFromRack1();
    EXPECT_TRUE(call->answered());
    while (background.RunOne()) Settle();
    sessions.clear();
    ExpectNothingLeft();
    for (std::uint32_t each = 0; each < kRacks; ++each) Start(each);
    Settle();
  }
}

TEST_F(GroupAttemptsTest, AnswersAndDecisionsThatAreNotDueAreRefusedAndCounted) {
  EnterAll();
  ASSERT_TRUE(Add(1, {1, 4}, {Collective("a")})->ok());
  v1::PeerMessage message;
  message.mutable_group_reserved()->set_number(1);
  ExpectRefused("already decided", 2, 0, message);
  ExpectRefused("not rack 0", 0, 1, message);
  message.mutable_group_released()->set_number(1);
  ExpectRefused("not refused", 2, 0, message);
  message.mutable_group_decided()->set_number(1);
  ExpectRefused("nothing is reserved", 0, 2, message);
  node(0).network.Keep(RackIndex{2}, Kind::kGroupDecided);
  const auto waits = Add(1, {1, 4}, {Collective("b")}, 1);
  node(0).network.Keep(RackIndex{2}, std::nullopt);
  message.mutable_group_decided()->set_batch(0);
  ExpectRefused("about another batch", 0, 2, message);
  message.mutable_group_decided()->set_batch(1);
  ExpectRefused("not from rack 0", 1, 2, message);
  EXPECT_FALSE(waits->answered());
}

}  // namespace
}  // namespace phub::server
