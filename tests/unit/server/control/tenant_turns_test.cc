#include "server/control/jobs/tenant_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace phub::server {
namespace {

using ::testing::ElementsAre;

TEST(TenantTurns, ATenantHasOneAtATimeAndTheyTakeTurns) {
  TenantTurns turns(2);
  std::vector<std::string> begun;
  const auto enter = [&](const std::string& tenant) {
    turns.Enter(tenant, [&begun, tenant] { begun.push_back(tenant); });
  };
  for (int i = 0; i < 3; ++i) enter("red");
  EXPECT_THAT(begun, ElementsAre("red"));
  EXPECT_EQ(turns.WaitingOf("red"), 2u);
  enter("blue");
  enter("green");
  EXPECT_THAT(begun, ElementsAre("red", "blue"));
  turns.Leave("red");
  EXPECT_THAT(begun, ElementsAre("red", "blue", "green"));
  turns.Leave("blue");
  EXPECT_THAT(begun, ElementsAre("red", "blue", "green", "red"));
  turns.Leave("red");
  turns.Leave("green");
  EXPECT_EQ(begun.size(), 5u);
  EXPECT_EQ(turns.WaitingOf("red"), 0u);
}

TEST(TenantTurns, WorkThatEndsAtOnceNeedsNoStack) {
  TenantTurns turns(1);
  turns.Enter("red", [] {});
  int done = 0;
  for (int i = 0; i < 200'000; ++i) {
    turns.Enter("red", [&] {
      ++done;
      turns.Leave("red");
    });
  }
  turns.Leave("red");
  EXPECT_EQ(done, 200'000);
}

}  // namespace
}  // namespace phub::server
