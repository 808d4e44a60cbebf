// Groups of several racks with an aggregator for the switch between them. Plans use it for three
// racks, and not for two.
#include "tests/unit/server/control/rack_groups_fixture.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kAggregator = 3;
const std::vector<std::uint32_t> kMembers = {1, 2, 5};  // one in each rack

class GroupAggregatorsTest : public RackGroupsTest {
 protected:
  GroupAggregatorsTest() { EXPECT_EQ(StartWithAggregator(), kAggregator); }
  void Begin(const std::string& plan) {
    set_options = [plan](v1::JobOptions& options) { options.set_plan(plan); };
    EnterAll();
  }
  // The group's id at each member.
  std::vector<std::uint64_t> Make() {
    std::vector<std::uint64_t> ids;
    for (const std::uint32_t rank : kMembers) {
      const auto call = Add(rank, kMembers, {Collective("a", 70'000), Collective("b")});
      EXPECT_TRUE(call->ok()) << call->message();
      ids.push_back(call->response.group_id());
    }
    return ids;
  }
  std::uint64_t ChargedKeys(std::uint32_t rack) {
    return node(rack).control().tenants().ledger().GrantUseOf(kDefaultTenant).charged.keys;
  }
};

TEST_F(GroupAggregatorsTest, TheAggregatorHasTheKeysAndIsNoMember) {
  Begin("in-switch");
  Make();
  ASSERT_EQ(AddedAt(kAggregator).size(), 1u);
  const KeyBatch& batch = *AddedAt(kAggregator).back().batch;
  EXPECT_EQ(batch.keys[0].members->count(), 0u);
  EXPECT_EQ(batch.exchange->first_number, AddedAt(0).back().batch->exchange->first_number);
  // The third rack is the home, which adds the aggregator's sum to its own.
  EXPECT_EQ(batch.exchange->chunks[0].tree->reduce_children.size(), 2u);
  // Expect: keys count once, at the first rack.
  EXPECT_EQ(ChargedKeys(0), 2u);
  EXPECT_EQ(ChargedKeys(1) + ChargedKeys(2) + ChargedKeys(kAggregator), 0u);
  ExpectNoFault();
}

// Otherwise sums could arrive before the chunks to which they belong.
TEST_F(GroupAggregatorsTest, RanksWaitForTheAggregatorsCoreLoops) {
  Begin("in-switch");
  node(kAggregator).cores[0]->stopped = true;
  std::vector<CallPtr<v1::AddKeysResponse>> calls;
  for (const std::uint32_t rank : kMembers) calls.push_back(Add(rank, kMembers, {Collective("a")}));
  for (const auto& call : calls) EXPECT_FALSE(call->answered());
  node(kAggregator).cores[0]->stopped = false;
  Settle();
  for (const auto& call : calls) EXPECT_TRUE(call->ok()) << call->message();
}

TEST_F(GroupAggregatorsTest, TheAggregatorHasNoGroupIfTheJobDoesNotUseIt) {
  Begin("ring");
  Make();
  EXPECT_TRUE(AddedAt(kAggregator).empty());
  EXPECT_EQ(StateAt(kAggregator), "");
}

TEST_F(GroupAggregatorsTest, ARemovalReturnsWhatTheAggregatorHeld) {
  Begin("in-switch");
  const std::vector<std::uint64_t> before = MemoryOfRacks();
  for (std::size_t round = 0; round < 5; ++round) {
    const std::vector<std::uint64_t> ids = Make();
    EXPECT_GT(MemoryOfRacks()[kAggregator], before[kAggregator]);
    const auto one = Remove(kMembers[0], ids[0]);
    const auto two = Remove(kMembers[1], ids[1]);
    EXPECT_FALSE(one->answered() || two->answered());
    EXPECT_EQ(node(kAggregator).cores[0]->Executed(Command::Kind::kRemoveKeys).size(), round);
    const auto last = Remove(kMembers[2], ids[2]);
    ASSERT_TRUE(one->ok() && two->ok() && last->ok()) << last->message();
    EXPECT_EQ(MemoryOfRacks(), before) << round;
  }
  ExpectNoFault();
}

// A member that has left will never call; the members that have called are answered.
TEST_F(GroupAggregatorsTest, ARemovalThatIsRefusedConcernsTheMembersOnly) {
  Begin("in-switch");
  const std::vector<std::uint64_t> ids = Make();
  const auto call = Remove(kMembers[0], ids[0]);
  Leave({2});
  EXPECT_THAT(call->message(), HasSubstr("rank 2 (node2) has left"));
  EXPECT_EQ(RefusedAt(kAggregator), 0u);
}

TEST_F(GroupAggregatorsTest, ABatchThatTheAggregatorCannotAddIsRefusedEverywhere) {
  Start(kAggregator, [&](ControlOptions& options) {
    options.aggregator_count = 1;
    options.rack_topology = node(0).options.rack_topology;
    options.memory_bytes_max = std::uint64_t{4} << 20;
  });
  Begin("in-switch");
  const std::vector<std::uint64_t> before = MemoryOfRacks();
  std::vector<CallPtr<v1::AddKeysResponse>> calls;
  for (const std::uint32_t rank : kMembers)
    calls.push_back(Add(rank, kMembers, {Collective("large", 1'000'000)}));
  for (const auto& call : calls)
    EXPECT_THAT(call->message(), HasSubstr("aggregator 3 (node3:7700) cannot add the keys"));
  EXPECT_EQ(MemoryOfRacks(), before);
  // Expect: the job goes on, and the group can be made with less.
  Make();
  EXPECT_EQ(AddedAt(kAggregator).size(), 1u);
  ExpectNoFault();
}

// The aggregator still holds a refused batch while the members remove the group.
TEST_F(GroupAggregatorsTest, ARemovalWaitsForARefusedBatch) {
  Begin("in-switch");
  const std::vector<std::uint64_t> before = MemoryOfRacks();
  const std::vector<std::uint64_t> ids = Make();
  node(kAggregator).network.Keep(RackIndex{0}, v1::PeerMessage::kGroupReleased);
  node(0).control().tenants().SetTenant({.name = kDefaultTenant, .quota = {.keys = 2}});
  std::vector<CallPtr<v1::AddKeysResponse>> calls;
  for (const std::uint32_t rank : kMembers)
    calls.push_back(NodeOf(rank).AddKeys(RequestOf(rank, kMembers, {Collective("third")}, 1)));
  Settle();
  for (const auto& call : calls) EXPECT_FALSE(call->ok());
  std::vector<CallPtr<v1::RemoveKeysResponse>> removals;
  for (std::size_t i = 0; i < ids.size(); ++i) removals.push_back(Remove(kMembers[i], ids[i]));
  for (const auto& call : removals) EXPECT_FALSE(call->answered());
  ASSERT_EQ(node(kAggregator).network.kept.size(), 1u);
  const v1::PeerMessage released = node(kAggregator).network.kept.front();
  node(kAggregator).network.Keep(RackIndex{0}, std::nullopt);
  Say(kAggregator, 0, incarnation, released);
  Settle();
  for (const auto& call : removals) EXPECT_TRUE(call->ok()) << call->message();
  EXPECT_EQ(MemoryOfRacks(), before);
  ExpectNoFault();
}

// Rack 0 never sends it: the aggregator has a batch about which rack 0 has not decided.
TEST_F(GroupAggregatorsTest, ARemovalIsNotDueBeforeTheDecision) {
  Begin("in-switch");
  node(0).network.Keep(RackIndex{kAggregator}, v1::PeerMessage::kGroupDecided);
  std::vector<CallPtr<v1::AddKeysResponse>> calls;
  for (const std::uint32_t rank : kMembers) calls.push_back(Add(rank, kMembers, {Collective("a")}));
  v1::PeerMessage step;
  step.mutable_group_removal()->set_number(1);
  step.mutable_group_removal()->set_step(v1::PEER_GROUP_STEP_CALLED);
  const v1::PeerMessage decided = node(0).network.kept.front();
  node(0).network.Keep(RackIndex{kAggregator}, std::nullopt);
  ExpectRefused("undecided", 0, kAggregator, step);
  Say(0, kAggregator, incarnation, decided);
  Settle();
  for (const auto& call : calls) EXPECT_TRUE(call->ok()) << call->message();
}

// Only rack 0 decides what an aggregator has, and a plan must use it.
TEST_F(GroupAggregatorsTest, MessagesThatDoNotFitAreCounted) {
  Begin("in-switch");
  Make();
  ExpectRefused("from a rack", 1, kAggregator, KeysFor(kMembers));
  v1::PeerMessage asked = AskingFor(kMembers, 1);
  asked.mutable_group_asked()->mutable_group()->set_name("asked");
  ExpectRefused("asked by an aggregator", kAggregator, 0, asked);
  v1::PeerMessage called;
  called.mutable_group_removal()->set_number(1);
  called.mutable_group_removal()->set_step(v1::PEER_GROUP_STEP_CALLED);
  called.mutable_group_removal()->set_batches(1);
  ExpectRefused("called by an aggregator", kAggregator, 0, called);
}

}  // namespace
}  // namespace phub::server
