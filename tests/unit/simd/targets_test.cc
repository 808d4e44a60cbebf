// The available instruction sets.
#include "hwy/targets.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "common/simd/kernels.h"

namespace phub::simd {
namespace {

TEST(Targets, NamesAreThoseOfTheMachineAndTheBestIsInUse) {
  hwy::SetSupportedTargetsForTest(0);
  const std::vector<const char*> names = SupportedTargetNames();
  ASSERT_FALSE(names.empty());
  EXPECT_STREQ(TargetName(), names.front());
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

// Otherwise, a build that lost run-time dispatch would pass all tests that run on each target.
TEST(Targets, MoreThanOneIsTestedWhereTheMachineHasMore) {
  const std::size_t tested = hwy::SupportedAndGeneratedTargets().size();
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  if (__builtin_cpu_supports("avx2")) {
    EXPECT_GE(tested, 2u);
  }
#endif
  EXPECT_GE(tested, 1u);
}

}  // namespace
}  // namespace phub::simd
