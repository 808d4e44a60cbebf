// Plans of groups of several racks: around those of the job and of other groups, jointly for groups
// that are declared together, and never changed.
#include <algorithm>
#include <vector>

#include "tests/unit/server/control/rack_groups_fixture.h"

namespace phub::server {
namespace {

class GroupPlansTest : public RackGroupsTest {
 protected:
  // The home of each tree of the group's plan, as rack 0 has it.
  std::vector<std::uint32_t> HomesAt(std::size_t added) {
    std::vector<std::uint32_t> homes;
    for (const exchange::RackTree& tree : AddedAt(0)[added].batch->exchange->plan->trees)
      homes.push_back(tree.home.value);
    return homes;
  }
  CallPtr<v1::AddKeysResponse> Declare(std::uint32_t rank, const std::string& name,
                                       const std::vector<std::uint32_t>& ranks,
                                       const std::vector<v1::GroupSpec>& declared) {
    v1::AddKeysRequest request = RequestOf(rank, ranks, {Collective("a")}, 0, name);
    for (const v1::GroupSpec& each : declared) *request.add_declared() = each;
    const auto call = NodeOf(rank).AddKeys(request);
    Settle();
    return call;
  }
  void EnterWithPlan(const std::string& plan) {
    set_options = [plan](v1::JobOptions& options) { options.set_plan(plan); };
    EnterAll();
  }
};

// Both trees of a double binary tree have a home, and inner racks.
TEST_F(GroupPlansTest, LaterGroupsUseOtherRacksThanEarlierOnes) {
  EnterWithPlan("double-binary-tree");
  ASSERT_TRUE(Add(0, {0, 2, 4}, {Collective("a")}, 0, "one")->ok());
  const std::vector<std::uint32_t> first = HomesAt(0);
  ASSERT_TRUE(Add(1, {1, 3, 5}, {Collective("a")}, 0, "two")->ok());
  EXPECT_NE(HomesAt(1), first);
  EXPECT_EQ(HomesAt(0), first) << "a running group's plan has changed";
}

// Expect: a removed group is not planned around any more.
TEST_F(GroupPlansTest, ARemovedGroupLeavesRoomForTheNextOne) {
  EnterWithPlan("double-binary-tree");
  const auto one = Add(0, {0, 2}, {Collective("a")}, 0, "one");
  const auto other = Add(2, {0, 2}, {Collective("a")}, 0, "one");
  ASSERT_TRUE(one->ok() && other->ok());
  const std::vector<std::uint32_t> first = HomesAt(0);
  const auto removed = BeginRemoval(0, one->response.group_id());
  ASSERT_TRUE(Remove(2, other->response.group_id())->ok());
  ASSERT_TRUE(removed->ok());
  ASSERT_TRUE(Add(0, {0, 2}, {Collective("a")}, 0, "two")->ok());
  EXPECT_EQ(HomesAt(1), first);
}

TEST_F(GroupPlansTest, GroupsThatAreDeclaredTogetherArePlannedTogether) {
  EnterWithPlan("double-binary-tree");
  const std::vector<v1::GroupSpec> declared = {GroupOf({0, 2, 4}, "one"), GroupOf({1, 3, 5}, "two"),
                                               GroupOf({0, 1}, "inside")};
  ASSERT_TRUE(Declare(0, "one", {0, 2, 4}, declared)->ok());
  const int plans = node(0).network.sent[v1::PeerMessage::kGroupKeys];
  ASSERT_TRUE(Declare(5, "two", {1, 3, 5}, declared)->ok());
  EXPECT_EQ(node(0).network.sent[v1::PeerMessage::kGroupKeys], plans + 2);
  EXPECT_NE(HomesAt(0), HomesAt(1));
  ExpectNoFault();
}

TEST_F(GroupPlansTest, DeclaredRanksThatCannotExistAreRefused) {
  EnterAll();
  const auto call = Declare(0, "one", {0, 2}, {GroupOf({0, 9}, "other")});
  EXPECT_THAT(call->message(),
              ::testing::HasSubstr("gave group other of job digits the ranks 0, 9"));
  ExpectNoFault();
  v1::PeerMessage message = AskingFor({1, 4}, 4);
  *message.mutable_group_asked()->add_declared() = GroupOf({4, 5});
  ExpectRefused("a declared group inside a rack", 2, 0, message);
}

// Planning them is one piece of work, which delays that of other jobs.
TEST_F(GroupPlansTest, NoMoreThanALimitAreDeclaredTogether) {
  EnterAll();
  const std::vector<v1::GroupSpec> many(65, GroupOf({0, 2}, "one"));
  EXPECT_THAT(Declare(0, "one", {0, 2}, many)->message(),
              ::testing::HasSubstr("declared 65 groups of job digits together, and at most 64"));
  v1::PeerMessage message = AskingFor({1, 4}, 4);
  for (const v1::GroupSpec& each : many) *message.mutable_group_asked()->add_declared() = each;
  ExpectRefused("65 declared groups", 2, 0, message);
}

}  // namespace
}  // namespace phub::server
