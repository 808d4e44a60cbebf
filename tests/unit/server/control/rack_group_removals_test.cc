// Removal of groups of several racks: its steps, what it returns in every rack, and what refuses
// it.
#include "server/core/exchange/shard_exchange.h"
#include "tests/unit/server/control/rack_groups_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = v1::PeerMessage::MessageCase;

class GroupRemovalsTest : public RackGroupsTest {
 protected:
  std::size_t RemovalsAt(std::uint32_t rack) {
    return node(rack).cores[0]->Executed(Command::Kind::kRemoveKeys).size();
  }
  std::uint64_t ChargedKeys(std::uint32_t rack) {
    return node(rack).control().tenants().ledger().GrantUseOf(kDefaultTenant).charged.keys;
  }
  // The group's id at the racks of these ranks, one of each.
  std::vector<std::uint64_t> Make(const std::vector<std::uint32_t>& ranks) {
    std::vector<std::uint64_t> ids;
    for (const std::uint32_t rank : ranks) {
      const auto call = Add(rank, ranks, {Collective("a", 70'000), Collective("b")});
      EXPECT_TRUE(call->ok()) << call->message();
      ids.push_back(call->response.group_id());
    }
    return ids;
  }
};

TEST_F(GroupRemovalsTest, EveryRackGetsBackWhatTheGroupHeld) {
  EnterAll();
  AddToJob(0, RackNode::Key("w", 100));
  ASSERT_TRUE(Add(2, {2, 3}, {Collective("inside")}, 0, "inside")->ok());
  Make({3, 5});
  const std::vector<std::uint64_t> before = MemoryOfRacks();
  const std::uint64_t keys[] = {ChargedKeys(0), ChargedKeys(1), ChargedKeys(2)};
  std::uint32_t first = 0;
  for (int round = 0; round < 20; ++round) {
    const std::vector<std::uint64_t> ids = Make({1, 4});
    const KeyBatch& batch = *AddedAt(2).back().batch;
    if (round == 0) first = *batch.exchange->first_number;
    EXPECT_EQ(batch.exchange->first_number, first) << round;
    EXPECT_EQ(AddedAt(0).back().batch->keys[0].key.value, kGroupKeysFirst) << round;
    const auto one = Remove(1, ids[0]);
    EXPECT_FALSE(one->answered());
    const auto other = Remove(4, ids[1]);
    ASSERT_TRUE(one->ok() && other->ok()) << one->message() << other->message();
    EXPECT_EQ(MemoryOfRacks(), before);
    for (std::uint32_t rack = 0; rack < kRacks; ++rack) EXPECT_EQ(ChargedKeys(rack), keys[rack]);
  }
  ExpectNoFault();
  Leave({0, 1, 2, 3, 4, 5});
  ExpectNothingLeft();
}

TEST_F(GroupRemovalsTest, NoRackUnlinksBeforeAllMembersHaveCalled) {
  EnterAll();
  const std::vector<std::uint64_t> ids = Make({0, 1, 4});
  const auto first = Remove(4, ids[2]);
  const auto second = Remove(0, ids[0]);
  EXPECT_EQ(RemovalsAt(0) + RemovalsAt(2), 0u);
  const auto last = Remove(1, ids[1]);
  EXPECT_TRUE(first->ok() && second->ok() && last->ok());
  EXPECT_EQ(RemovalsAt(0), 1u);
  EXPECT_EQ(RemovalsAt(2), 1u);
  EXPECT_EQ(RemovalsAt(1), 0u);
}

// Rack 2 has unlinked the group; a message of rack 0 to it could still be under way.
TEST_F(GroupRemovalsTest, NoRackFreesBeforeAllHaveUnlinked) {
  EnterAll();
  const std::vector<std::uint64_t> ids = Make({1, 4});
  const std::vector<std::uint64_t> with = MemoryOfRacks();
  node(0).cores[0]->stopped = true;
  const auto one = Remove(1, ids[0]);
  const auto other = Remove(4, ids[1]);
  EXPECT_EQ(RemovalsAt(2), 1u);
  EXPECT_FALSE(one->answered() || other->answered());
  EXPECT_EQ(MemoryOfRacks()[2], with[2]);
  node(0).cores[0]->stopped = false;
  Settle();
  EXPECT_TRUE(one->ok() && other->ok());
  EXPECT_LT(MemoryOfRacks()[2], with[2]);
}

// Numbers on lanes are used again only when every rack is done. Rank 1 is answered before.
TEST_F(GroupRemovalsTest, ANewGroupOfTheNameWaitsForAllRacks) {
  EnterAll();
  const std::vector<std::uint64_t> ids = Make({1, 4});
  node(2).network.Keep(RackIndex{0}, Kind::kGroupRemoval);
  const auto one = Remove(1, ids[0]);
  const auto other = Remove(4, ids[1]);
  node(2).network.Keep(RackIndex{0}, std::nullopt);
  Say(2, 0, incarnation, node(2).network.kept[0]);  // rack 2's members have called
  node(2).network.Keep(RackIndex{0}, Kind::kGroupRemoval);
  Settle();
  node(2).network.Keep(RackIndex{0}, std::nullopt);
  ASSERT_EQ(node(2).network.kept.size(), 2u);
  Say(2, 0, incarnation, node(2).network.kept[1]);  // it has unlinked the group
  node(2).network.Keep(RackIndex{0}, Kind::kGroupRemoval);
  Settle();
  ASSERT_TRUE(one->ok() && other->ok()) << one->message() << other->message();
  const auto again = NodeOf(1).AddKeys(RequestOf(1, {1, 4}, {Collective("a")}, 0));
  Settle();
  EXPECT_FALSE(again->answered());
  node(2).network.Keep(RackIndex{0}, std::nullopt);
  ASSERT_EQ(node(2).network.kept.size(), 3u);
  Say(2, 0, incarnation, node(2).network.kept[2]);
  Settle();
  EXPECT_TRUE(again->ok()) << again->message();
  ExpectNoFault();
}

TEST_F(GroupRemovalsTest, AMemberOfAnotherRackThatHasLeftIsNamedAndTheGroupStays) {
  EnterAll();
  const std::vector<std::uint64_t> ids = Make({1, 2, 4});
  const auto before = Remove(2, ids[1]);
  EXPECT_FALSE(before->answered());
  Leave({4});
  Settle();
  const auto after = Remove(1, ids[0]);
  for (const auto& call : {before, after}) {
    EXPECT_EQ(call->code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(call->message(),
                AllOf(HasSubstr("cannot remove group pair (ranks 1, 2, 4): rank 4"),
                      HasSubstr("has left")));
  }
  EXPECT_TRUE(Add(2, {1, 2, 4}, {Collective("c")}, 1)->ok());
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u, 5u}) EXPECT_EQ(FaultOf(rank), "") << rank;
}

TEST_F(GroupRemovalsTest, KeysThatAreAddedWhileOthersRemoveTheGroupEndTheJob) {
  EnterAll();
  const std::vector<std::uint64_t> ids = Make({1, 4});
  const auto removal = Remove(1, ids[0]);
  (void)Add(4, {1, 4}, {Collective("c")}, 1);
  EXPECT_TRUE(removal->answered());
  EXPECT_THAT(FaultOf(0), HasSubstr("rank 4 adds keys to group pair (ranks 1, 4), which ranks of "
                                    "other racks remove"));
}

TEST_F(GroupRemovalsTest, AJobMayEndInEveryStep) {
  for (const std::uint32_t rack : {0u, 2u}) {
    EnterAll();
    const std::vector<std::uint64_t> ids = Make({1, 4});
    node(rack).cores[0]->stopped = true;
    const auto one = Remove(1, ids[0]);
    const auto other = Remove(4, ids[1]);
    EvictFromRack1();
    EXPECT_TRUE(one->answered() && other->answered());
    node(rack).cores[0]->stopped = false;
    Settle();
    sessions.clear();
    ExpectNothingLeft();
    for (std::uint32_t each = 0; each < kRacks; ++each) Start(each);
    Settle();
  }
}

TEST_F(GroupRemovalsTest, StepsThatAreNotDueAreRefusedAndCounted) {
  EnterAll();
  const std::vector<std::uint64_t> ids = Make({1, 4});
  v1::PeerMessage message;
  v1::PeerGroupRemoval& step = *message.mutable_group_removal();
  step.set_number(1);
  step.set_step(v1::PEER_GROUP_STEP_UNLINKED);
  step.set_batches(1);
  ExpectRefused("nobody has called", 2, 0, message);
  ExpectRefused("nothing is unlinked", 0, 2, message);
  step.set_step(v1::PEER_GROUP_STEP_CALLED);
  ExpectRefused("rack 1 has no member", 1, 0, message);
  ExpectRefused("no member has called", 0, 2, message);
  ExpectRefused("not from rack 0", 1, 2, message);
  step.set_number(2);
  ExpectRefused("no such group", 2, 0, message);
}

}  // namespace
}  // namespace phub::server
