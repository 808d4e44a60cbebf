// Rounds do not allocate memory in the calling thread.
#include <gtest/gtest.h>

#include "phub/client.h"
#include "tests/support/allocation_counter.h"
#include "tests/unit/client/session/fake_rack.h"

namespace phub::client {
namespace {

TEST(SessionAllocation, RoundsAllocateNothingInTheCaller) {
  FakeRack rack({2});
  auto job = rack.Join({.job = "digits"});
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  auto key = job->AddKey("w", f32, 1000, None{});
  ASSERT_TRUE(key.ok()) << ToString(key.status());
  ASSERT_TRUE(key->PushPull().Wait().ok());
  const std::size_t before = phub::testing::AllocationCount();
  for (int i = 0; i < 50; ++i) {
    const Handle handle = key->PushPull();
    if (!handle.Wait().ok()) break;
  }
  EXPECT_GT(before, 0u);  // the counter works
  EXPECT_EQ(phub::testing::AllocationCount() - before, 0u);
  EXPECT_EQ(key->iteration(), 51u);
}

}  // namespace
}  // namespace phub::client
