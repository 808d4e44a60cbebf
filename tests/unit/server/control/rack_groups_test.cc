// Groups in jobs that span racks: who knows of them, how keys are placed next to them, what is
// charged, and what is refused.
#include "server/control/keys/group_text.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Racks 0, 1 and 2 have ranks 0 and 1, 2 and 3, 4 and 5.
class RackGroupsTest : public RackJobsTest {
 protected:
  static v1::KeySpec Collective(const std::string& name, std::uint64_t elements = 1000) {
    v1::KeySpec key = RackNode::Key(name, elements);
    key.set_optimizer(v1::OPTIMIZER_NONE);
    key.clear_hyper_parameters();
    key.set_collective(true);
    return key;
  }
  CallPtr<v1::AddKeysResponse> Add(std::uint32_t rank, const std::vector<std::uint32_t>& ranks,
                                   const std::vector<v1::KeySpec>& keys, std::uint32_t batch = 0,
                                   const std::string& name = "pair") {
    v1::AddKeysRequest request = RackNode::Batch(sessions[rank], batch, keys);
    request.mutable_group()->set_name(name);
    for (const std::uint32_t each : ranks) request.mutable_group()->add_ranks(each);
    const auto call = NodeOf(rank).AddKeys(request);
    Settle();
    return call;
  }
  // Every member adds the keys. Returns the group's id.
  std::uint64_t AddAll(const std::vector<std::uint32_t>& ranks,
                       const std::vector<v1::KeySpec>& keys) {
    std::vector<CallPtr<v1::AddKeysResponse>> calls;
    for (const std::uint32_t rank : ranks) calls.push_back(Add(rank, ranks, keys));
    for (const auto& call : calls) EXPECT_TRUE(call->ok()) << call->message();
    return calls.back()->response.group_id();
  }
  void AddToJob(std::uint32_t batch, const v1::KeySpec& key) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank)
      added_.push_back(NodeOf(rank).AddKeys(RackNode::Batch(sessions[rank], batch, {key})));
    Settle();
    for (const auto& call : added_) EXPECT_TRUE(call->ok()) << call->message();
  }
  std::vector<Command> AddedAt(std::uint32_t rack) {
    return node(rack).cores[0]->Executed(Command::Kind::kAddKeys);
  }

  std::vector<CallPtr<v1::AddKeysResponse>> added_;
};

TEST_F(RackGroupsTest, AGroupInsideARackIsKnownThereOnly) {
  EnterAll();
  AddAll({2, 3}, {Collective("a")});
  const auto batches = AddedAt(1);
  ASSERT_EQ(batches.size(), 1u);
  const ShardKey& key = batches[0].batch->keys[0];
  // Expect: core loops number the ranks of their rack from 0.
  ASSERT_NE(key.members, nullptr);
  EXPECT_THAT(key.members->ranks(), ElementsAre(Rank{0}, Rank{1}));
  EXPECT_EQ(batches[0].batch->exchange, nullptr);
  EXPECT_EQ(batches[0].batch->chunks[0].exchange, nullptr);
  EXPECT_TRUE(AddedAt(0).empty());
  EXPECT_TRUE(AddedAt(2).empty());
}

// Expect: a rack with groups gives later chunks of the job other numbers, and places them alike.
TEST_F(RackGroupsTest, KeysOfTheJobArePlacedAsIfThereWereNoGroups) {
  EnterAll();
  AddToJob(0, RackNode::Key("first", 100));
  const std::uint64_t id = AddAll({2, 3}, {Collective("a", 1'000'000)});
  AddAll({4}, {Collective("b", 70'000)});
  added_.clear();
  AddToJob(1, RackNode::Key("second", 1'000'000));
  ASSERT_EQ(added_.size(), kRanks);
  const v1::KeyPlacement& first = added_[0]->response.placements(0);
  const v1::KeyPlacement& next = added_[2]->response.placements(0);
  EXPECT_EQ(first.SerializeAsString(), added_[1]->response.placements(0).SerializeAsString());
  EXPECT_TRUE(std::ranges::equal(first.chunk_bins(), next.chunk_bins()));
  EXPECT_GT(next.first_chunks(0), first.first_chunks(0));
  // Expect: what the group held is returned, and the rack places keys of groups as before.
  std::vector<CallPtr<v1::RemoveKeysResponse>> removals;
  for (const std::uint32_t rank : {2u, 3u}) {
    v1::RemoveKeysRequest request;
    request.set_session_id(sessions[rank]);
    request.set_group_id(id);
    removals.push_back(NodeOf(rank).RemoveKeys(request));
    Settle();
  }
  for (const auto& call : removals) EXPECT_TRUE(call->ok()) << call->message();
  node(1).control().CheckInvariants();
  const auto again = Add(3, {2, 3}, {Collective("c", 1'000'000)});
  ASSERT_TRUE(again->ok()) << again->message();
  EXPECT_EQ(again->response.placements(0).key_index(), kGroupKeysFirst);
}

// A gather of the members of rack 1: core loops know senders by their numbers in the job.
TEST_F(RackGroupsTest, GathersAndPoolsWorkInsideARackAndNotAcrossRacks) {
  EnterAll();
  v1::KeySpec gathered = Collective("a");
  gathered.set_movement(v1::MOVEMENT_GATHER);
  AddAll({2, 3}, {gathered});
  const Command added = AddedAt(1)[0];
  EXPECT_EQ(added.batch->chunks.front().sender, Rank{2});
  EXPECT_EQ(added.batch->chunks.back().sender, Rank{3});
  const auto refused = NodeOf(0).AddKeys(RackNode::Batch(sessions[0], 0, {Collective("b")}));
  EXPECT_THAT(refused->message(),
              HasSubstr("key b: collective keys do not work in jobs that span racks, except in "
                        "groups inside one rack"));
}

TEST_F(RackGroupsTest, AGroupOverSeveralRacksIsRefusedByName) {
  EnterAll();
  const auto call = Add(2, {0, 2, 3}, {Collective("a")});
  EXPECT_EQ(call->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(call->message(),
              AllOf(HasSubstr("group pair (ranks 0, 2, 3) of job digits has members in racks 1 and "
                              "0, and groups of several racks are not supported")));
  EXPECT_THAT(Add(2, {3}, {Collective("a")})->message(),
              HasSubstr("rank 2 (node2) is not a member of group pair"));
  EXPECT_THAT(Add(2, {2, 6}, {Collective("a")})->message(), HasSubstr("less than world_size 6"));
  // Expect: the job goes on, and so do groups of one rack.
  AddAll({2, 3}, {Collective("a")});
}

TEST_F(RackGroupsTest, MembersThatDisagreeAboutTheRanksAreBothNamed) {
  EnterAll();
  ASSERT_TRUE(Add(4, {4, 5}, {Collective("a")})->ok());
  const auto call = Add(5, {5}, {Collective("a")});
  EXPECT_THAT(call->message(), AllOf(HasSubstr("rank 4 (node4) made group pair of ranks 4, 5"),
                                     HasSubstr("rank 5 (node5) made it of ranks 5")));
  EXPECT_THAT(FaultOf(0), HasSubstr("group pair"));
}

// Keys of the job are charged once, at rack 0. No other rack has the keys of a rack's group.
TEST_F(RackGroupsTest, KeysOfAGroupAreChargedWhereTheyAre) {
  EnterAll();
  AddToJob(0, RackNode::Key("w", 10));
  AddAll({2, 3}, {Collective("a"), Collective("b")});
  const auto charged = [&](std::uint32_t rack) {
    return node(rack).control().tenants().ledger().GrantUseOf(kDefaultTenant).charged.keys;
  };
  EXPECT_EQ(charged(0), 1u);
  EXPECT_EQ(charged(1), 2u);
  EXPECT_EQ(charged(2), 0u);
  Leave({0, 1, 2, 3, 4, 5});
  ExpectNothingLeft();
  EXPECT_EQ(charged(1), 0u);
}

}  // namespace
}  // namespace phub::server
