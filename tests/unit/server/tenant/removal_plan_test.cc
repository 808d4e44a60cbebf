#include "server/tenant/removal_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Refusal(const std::vector<RemovalAnswer>& answers, bool has_time) {
  const auto plan = PlanRemoval("acme", answers, has_time);
  return plan.ok() ? (*plan ? "removed" : "waits") : std::string(plan.status().message());
}

TEST(RemovalPlan, EveryDaemonMustHaveAnsweredThatItUsesNothing) {
  EXPECT_EQ(Refusal({{"a", true, {}}, {"b", true, {}}}, true), "removed");
  EXPECT_EQ(Refusal({{"a", true, {}}, {"b", false, {}}}, true), "waits");
  // What a former answer says does not count.
  EXPECT_EQ(Refusal({{"a", true, {}}, {"b", false, {.jobs = 1}}}, true), "waits");
  EXPECT_EQ(Refusal({}, true), "removed");
}

TEST(RemovalPlan, NamesWhatEachDaemonUses) {
  const std::vector<RemovalAnswer> answers = {{"a (x:1 on host h)", true, {}},
                                              {"b (x:2 on host h)", true, {.jobs = 2, .keys = 7}},
                                              {"c", true, {.memory_bytes = 1024}}};
  EXPECT_THAT(Refusal(answers, true),
              AllOf(HasSubstr("b (x:2 on host h) uses 2 jobs, 7 keys; c uses 1 KiB memory. "),
                    Not(HasSubstr("a (x:1"))));
  for (const Resource resource : kGrantedResources) {
    RemovalAnswer one{"d", true, {}};
    At(one.used, resource) = 1;
    EXPECT_THAT(Refusal({one}, true), HasSubstr("it is in use: d uses 1")) << ToString(resource);
  }
}

TEST(RemovalPlan, ADaemonThatDoesNotAnswerIsNamedInTheEnd) {
  EXPECT_THAT(Refusal({{"a", true, {}}, {"b", false, {}}}, false),
              HasSubstr("have not answered, and may run its jobs: b."));
  // What is known to be used matters more.
  EXPECT_THAT(Refusal({{"a", true, {.jobs = 1}}, {"b", false, {}}}, false),
              HasSubstr("a uses 1 job."));
  std::vector<RemovalAnswer> many(20, {"x", false, {}});
  EXPECT_THAT(Refusal(many, false), HasSubstr("; and 12 more"));
}

}  // namespace
}  // namespace phub::server
