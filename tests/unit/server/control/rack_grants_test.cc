// Jobs across racks whose daemons share quotas: a rack opens its part of a job when its grant
// covers it. The test decides what the daemon is granted.
#include "server/control/admin/tenants.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class HandGrants final : public Grants {
 public:
  absl::Status Start(WithLedger) override { return absl::OkStatus(); }
  void Stop() override {}
  void Ask(const std::string&, const Usage& more, Then then) override {
    asked = more;
    waiting.push_back(std::move(then));
  }
  GrantsInCluster InCluster(const std::string&) const override { return {}; }
  std::string daemon_id() const override { return "hand"; }
  void Answer(const absl::Status& status) {
    for (const Then& then : std::exchange(waiting, {})) then(status);
  }

  Usage asked;
  std::vector<Then> waiting;
};

class RackGrantsTest : public RackJobsTest {
 protected:
  Ledger& LedgerOf(std::uint32_t rack) { return node(rack).control().tenants().ledger(); }
  // The daemon of the rack has a quota, and no part of it.
  void Limit(std::uint32_t rack, const Quota& quota) {
    Tenants& tenants = node(rack).control().tenants();
    tenants.SetTenant({.name = kDefaultTenant, .quota = quota});
    tenants.SetGrants(grants);
    tenants.ledger().UseGrants(node(rack).clock);
    tenants.ledger().SetGrantsEnd(kNever);
  }

  HandGrants grants;
};

TEST_F(RackGrantsTest, ARackOpensItsPartWhenItsGrantCoversTheWorkersThere) {
  Limit(2, {.jobs = 10, .workers = 10});
  const auto call = Join(0);
  Settle();
  ASSERT_EQ(grants.waiting.size(), 1u);
  EXPECT_EQ(grants.asked.workers, 2u);
  EXPECT_EQ(grants.asked.jobs, 0u) << "it counts in rack 0";
  EXPECT_FALSE(call->answered());
  LedgerOf(2).SetGrant(kDefaultTenant, {.workers = 2});
  grants.Answer(absl::OkStatus());
  Advance(kSecond);
  ASSERT_TRUE(call->ok()) << call->message();
  EXPECT_EQ(LedgerOf(2).GrantUseOf(kDefaultTenant).charged.workers, 2u);
}

TEST_F(RackGrantsTest, ARackThatGetsNoMoreRefusesTheJobAndSaysWhy) {
  Limit(2, {.workers = 10});
  const auto call = Join(0);
  Settle();
  grants.Answer(absl::ResourceExhaustedError("daemons hold 10"));
  Advance(kSecond);
  EXPECT_THAT(call->message(), AllOf(HasSubstr("rack 2 (node2:7700) did not open job digits"),
                                     HasSubstr("daemons hold 10")));
  ExpectNothingLeft();
}

TEST_F(RackGrantsTest, AJobThatAnotherRackAsksForCountsInRack0) {
  Limit(0, {.jobs = 10});
  const auto call = Join(3);
  Settle();
  ASSERT_EQ(grants.waiting.size(), 1u);
  EXPECT_EQ(grants.asked.jobs, 1u);
  // Another job was faster: the daemon asks again.
  grants.Answer(absl::OkStatus());
  Advance(kSecond);
  ASSERT_EQ(grants.waiting.size(), 1u);
  LedgerOf(0).SetGrant(kDefaultTenant, {.jobs = 1});
  grants.Answer(absl::OkStatus());
  Advance(kSecond);
  ASSERT_TRUE(call->ok()) << call->message();
  EXPECT_EQ(LedgerOf(0).GrantUseOf(kDefaultTenant).charged.jobs, 1u);
}

TEST_F(RackGrantsTest, KeysCountOnlyInRack0) {
  EnterAll();
  Limit(0, {.keys = 10});
  const auto keys = node(0).AddKeys(RackNode::Batch(sessions[0], 0, {RackNode::Key("fc", 4096)}));
  Settle();
  ASSERT_EQ(grants.waiting.size(), 1u);
  EXPECT_EQ(grants.asked.keys, 1u);
  EXPECT_FALSE(keys->answered());
  LedgerOf(0).SetGrant(kDefaultTenant, {.keys = 1});
  grants.Answer(absl::OkStatus());
  Settle();
  EXPECT_TRUE(keys->ok()) << keys->message();
  Limit(1, {.keys = 10});
  const auto others = node(1).AddKeys(RackNode::Batch(sessions[2], 0, {RackNode::Key("fc", 4096)}));
  Settle();
  EXPECT_TRUE(others->ok()) << others->message();
  EXPECT_TRUE(grants.waiting.empty());
}

}  // namespace
}  // namespace phub::server
