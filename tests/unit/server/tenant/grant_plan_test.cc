#include "server/tenant/grant_plan.h"

#include <gtest/gtest.h>

namespace phub::server {
namespace {

// A question about jobs only.
GrantQuestion About(std::uint32_t quota, std::uint64_t others, std::uint64_t charged) {
  GrantQuestion question;
  question.quota.jobs = quota;
  question.others.jobs = others;
  question.charged.jobs = charged;
  question.held.jobs = charged;
  return question;
}

TEST(GrantPlan, AsksForALittleMoreThanItNeedsWhileThereIsEnough) {
  GrantQuestion question = About(320, 40, 10);
  question.waiting = {{.jobs = 1}, {.jobs = 1}};
  const GrantPlan plan = PlanGrant(question);
  EXPECT_EQ(plan.grant.jobs, 12u + 320 / 16);
  EXPECT_FALSE(plan.is_short);
  // Four daemons that start with an empty quota leave something for each other.
  EXPECT_EQ(PlanGrant(About(8, 0, 0)).grant.jobs, 1u);
  EXPECT_EQ(PlanGrant(About(8, 6, 1)).grant.jobs, 1u);
}

TEST(GrantPlan, FillsTheQuotaExactlyAndNamesWhatIsLacking) {
  GrantQuestion question = About(8, 5, 1);
  question.quota.workers = 100;
  question.others.workers = 50;
  question.charged.workers = 10;
  question.waiting = {
      {.jobs = 1, .workers = 41}, {.jobs = 1, .workers = 40}, {.jobs = 1}, {.jobs = 1}};
  const GrantPlan plan = PlanGrant(question);
  ASSERT_EQ(plan.lacking.size(), 4u);
  EXPECT_EQ(plan.lacking[0], std::vector<Resource>{Resource::kWorkers});
  EXPECT_TRUE(plan.lacking[1].empty());
  EXPECT_TRUE(plan.lacking[2].empty());
  EXPECT_EQ(plan.lacking[3], std::vector<Resource>{Resource::kJobs});
  EXPECT_TRUE(plan.is_short);
  EXPECT_EQ(plan.grant, (Usage{.jobs = 3, .workers = 50}));
}

TEST(GrantPlan, GivesBackWhatIsFreeOnlyIfItIsNeeded) {
  GrantQuestion question = About(100, 60, 5);
  question.held.jobs = 30;
  EXPECT_EQ(PlanGrant(question).grant.jobs, 30u);
  question.others_want = true;
  EXPECT_EQ(PlanGrant(question).grant.jobs, 5u);
  question.others_want = false;
  question.quota.jobs = 70;  // lowered
  EXPECT_EQ(PlanGrant(question).grant.jobs, 10u);
  question.quota.jobs = 20;
  EXPECT_EQ(PlanGrant(question).grant.jobs, 5u);
}

TEST(GrantPlan, CoversWhatIsUsedEvenAboveTheQuota) {
  GrantQuestion question = About(10, 10, 7);
  question.held = {};  // the daemon was cut off, and others have the quota
  question.waiting = {{.jobs = 1}};
  const GrantPlan plan = PlanGrant(question);
  EXPECT_EQ(plan.grant.jobs, 7u);
  EXPECT_TRUE(plan.is_short);
}

TEST(GrantPlan, UnlimitedQuotasNeedNoGrant) {
  GrantQuestion question = About(10, 0, 1);
  question.charged.workers = 1000;
  question.waiting = {{.jobs = 1, .workers = 1u << 20}};
  const GrantPlan plan = PlanGrant(question);
  EXPECT_FALSE(plan.is_short);
  EXPECT_EQ(plan.grant.workers, 0u);
}

}  // namespace
}  // namespace phub::server
