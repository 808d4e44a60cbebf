#include <gtest/gtest.h>

#include <cfenv>
#include <limits>
#include <thread>

#include "common/simd/kernels.h"

namespace phub::simd {
namespace {

// Does what some libraries do to the threads that call them (for example, -ffast-math's start-up
// code). Returns true if this machine can be made to flush denormals.
bool FlushDenormals() {
  fenv_t environment;
  if (std::fegetenv(&environment) != 0) return false;
#if defined(__GLIBC__) && defined(__x86_64__)
  constexpr unsigned kFlushResults = 0x8000;
  constexpr unsigned kFlushInputs = 0x0040;
  environment.__mxcsr |= kFlushResults | kFlushInputs;
#elif defined(__GLIBC__) && defined(__aarch64__)
  constexpr unsigned kFlush = 1u << 24;
  environment.__fpcr |= kFlush;
#else
  return false;
#endif
  return std::fesetenv(&environment) == 0;
}

float SumOfTwo(float a, float b) {
  float result = 0.0f;
  const std::byte* const inputs[] = {reinterpret_cast<const std::byte*>(&a),
                                     reinterpret_cast<const std::byte*>(&b)};
  Fold(ElementType::kF32, Reduction::kSum, {nullptr, inputs}, 1,
       reinterpret_cast<std::byte*>(&result));
  return result;
}

constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

TEST(FloatingPointMode, KeepsDenormalsAgain) {
  std::thread([] {
    if (!FlushDenormals()) GTEST_SKIP() << "denormals cannot be flushed here";
    EXPECT_EQ(SumOfTwo(kSmallest, kSmallest), 0.0f);  // the mode has an effect
    SetFloatingPointMode();
    EXPECT_EQ(SumOfTwo(kSmallest, kSmallest), 2 * kSmallest);
  }).join();
}

TEST(FloatingPointMode, RoundsToNearestEvenAgain) {
  std::thread([] {
    ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
    EXPECT_EQ(SumOfTwo(1.0f, 0x1p-30f), 1.0f + 0x1p-23f);
    SetFloatingPointMode();
    EXPECT_EQ(SumOfTwo(1.0f, 0x1p-30f), 1.0f);
    EXPECT_EQ(SumOfTwo(1.0f, 0x1p-24f), 1.0f);
    EXPECT_EQ(SumOfTwo(1.0f, 0x3p-24f), 1.0f + 0x1p-22f);
  }).join();
}

TEST(FloatingPointMode, ConcernsTheCallingThreadOnly) {
  std::thread([] {
    ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
    std::thread([] { SetFloatingPointMode(); }).join();
    EXPECT_EQ(std::fegetround(), FE_UPWARD);
  }).join();
}

}  // namespace
}  // namespace phub::simd
