// Every kernel, on every instruction set of this machine, against plain serial loops, bit for bit.
// Any NaN equals any NaN (kernels.h: which one is the machine's affair).
#include "common/simd/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "hwy/targets.h"

namespace phub::simd {
namespace {

// Rounds to a float here and now: nothing is contracted, kept in a wider register or vectorised.
float Rounded(float value) {
  volatile float rounded = value;
  return rounded;
}

// kernels.h, word for word.
struct Reference {
  static float Sum(const std::vector<std::vector<float>>& inputs, std::size_t i) {
    float sum = inputs[0][i];
    for (std::size_t r = 1; r < inputs.size(); ++r) sum = Rounded(sum + inputs[r][i]);
    return sum;
  }
  static float Gradient(float sum, const SgdArguments& arguments, float parameter) {
    float g = sum;
    if (arguments.divisor != 0.0f) g = Rounded(g / arguments.divisor);
    if (arguments.weight_decay != 0.0f) {
      g = Rounded(g + Rounded(arguments.weight_decay * parameter));
    }
    return g;
  }
  static float Buffer(float gradient, const SgdArguments& arguments, float buffer) {
    if (arguments.first_step) return gradient;
    const float weight = Rounded(1.0f - arguments.dampening);
    return Rounded(Rounded(arguments.momentum * buffer) + Rounded(weight * gradient));
  }
  static float Step(float parameter, const SgdArguments& arguments, float direction) {
    return Rounded(parameter - Rounded(arguments.learning_rate * direction));
  }
};

// Arrays that start `offset` floats into an allocation which ends where they end, so that most are
// not aligned to vectors and AddressSanitizer sees an access past the end.
class Array {
 public:
  Array(std::size_t count, std::size_t offset) : offset_(offset), values_(count + offset) {}
  float* data() { return values_.data() + offset_; }
  const float* data() const { return values_.data() + offset_; }
  void Assign(const std::vector<float>& values) {
    std::copy(values.begin(), values.end(), values_.begin() + static_cast<std::ptrdiff_t>(offset_));
  }

 private:
  std::size_t offset_;
  std::vector<float> values_;
};

enum class Content { kOrdinary, kAnyBits };

// kOrdinary: signed, over twenty binades, so that nearly every operation rounds and no order of
// additions gives the bits of another. kAnyBits: any float at all, and much that is special.
float RandomFloat(SeededRandom& random, Content content) {
  if (content == Content::kAnyBits) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kSpecial[] = {0.0f,
                                  -0.0f,
                                  1.0f,
                                  -1.0f,
                                  1e38f,
                                  -1e38f,
                                  std::numeric_limits<float>::quiet_NaN(),
                                  kInfinity,
                                  3.4e38f,
                                  -kInfinity,
                                  0x1p-149f,
                                  -0x1p-149f,
                                  0x1.fffffcp-127f,
                                  0x1p-126f,
                                  -3.4e38f,
                                  0x1.8p-130f};
    if (random.Chance(1, 2)) return kSpecial[random.Below(std::size(kSpecial))];
    return std::bit_cast<float>(static_cast<std::uint32_t>(random.Next()));
  }
  const float mantissa = static_cast<float>(random.Below(1u << 24)) * 0x1p-24f + 0.5f;
  const float magnitude = std::ldexp(mantissa, static_cast<int>(random.Below(20)) - 10);
  return random.Chance(1, 2) ? magnitude : -magnitude;
}

std::vector<float> RandomFloats(SeededRandom& random, std::size_t count, Content content) {
  std::vector<float> values(count);
  for (float& value : values) value = RandomFloat(random, content);
  return values;
}

// The index of the first difference in bits, or count.
std::size_t FirstDifference(const float* actual, const std::vector<float>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    if (std::bit_cast<std::uint32_t>(actual[i]) != std::bit_cast<std::uint32_t>(expected[i])) {
      return i;
    }
  }
  return expected.size();
}

// k inputs of `count` elements, and their sum as the reference has it.
struct Problem {
  Problem(std::size_t k, std::size_t count_wanted, Content content)
      : random(k * 100003 + count_wanted), count(count_wanted) {
    for (std::size_t r = 0; r < k; ++r) {
      values.push_back(RandomFloats(random, count, content));
      arrays.emplace_back(count, random.Below(4));
      arrays.back().Assign(values.back());
    }
    for (const Array& array : arrays) inputs.push_back(array.data());
    for (std::size_t i = 0; i < count; ++i) sum.push_back(Reference::Sum(values, i));
    parameters = RandomFloats(random, count, content);
    momentum = RandomFloats(random, count, content);
  }

  SeededRandom random;
  std::size_t count;
  std::vector<std::vector<float>> values;
  std::vector<Array> arrays;
  std::vector<const float*> inputs;
  std::vector<float> sum;
  std::vector<float> parameters;
  std::vector<float> momentum;
};

void CheckSums(Problem& problem) {
  const std::size_t count = problem.count;
  Array output(count, 1);
  Sum(problem.inputs, count, output.data());
  EXPECT_EQ(FirstDifference(output.data(), problem.sum), count) << "Sum";

  const float divisor = static_cast<float>(problem.inputs.size());
  std::vector<float> mean;
  for (const float sum : problem.sum) mean.push_back(Rounded(sum / divisor));
  SumMean(problem.inputs, count, divisor, output.data());
  EXPECT_EQ(FirstDifference(output.data(), mean), count) << "SumMean";
}

void CheckSgd(Problem& problem, const SgdArguments& arguments) {
  const std::size_t count = problem.count;
  std::vector<float> expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    const float old = problem.parameters[i];
    const float gradient = Reference::Gradient(problem.sum[i], arguments, old);
    expected[i] = Reference::Step(old, arguments, gradient);
  }
  Array parameters(count, 3);
  parameters.Assign(problem.parameters);
  SumSgd(problem.inputs, count, arguments, parameters.data());
  EXPECT_EQ(FirstDifference(parameters.data(), expected), count) << "SumSgd";
}

void CheckMomentum(Problem& problem, const SgdArguments& arguments) {
  const std::size_t count = problem.count;
  std::vector<float> expected(count);
  std::vector<float> expected_momentum(count);
  for (std::size_t i = 0; i < count; ++i) {
    const float old = problem.parameters[i];
    const float gradient = Reference::Gradient(problem.sum[i], arguments, old);
    expected_momentum[i] = Reference::Buffer(gradient, arguments, problem.momentum[i]);
    expected[i] = Reference::Step(old, arguments, expected_momentum[i]);
  }
  Array parameters(count, 1);
  parameters.Assign(problem.parameters);
  Array momentum(count, 2);
  momentum.Assign(problem.momentum);
  SumMomentum(problem.inputs, count, arguments, parameters.data(), momentum.data());
  EXPECT_EQ(FirstDifference(parameters.data(), expected), count) << "parameters";
  EXPECT_EQ(FirstDifference(momentum.data(), expected_momentum), count) << "momentum";
}

void CheckUpdates(Problem& problem) {
  for (const float divisor : {0.0f, static_cast<float>(problem.inputs.size())}) {
    for (const float weight_decay : {0.0f, 0.013f}) {
      SgdArguments arguments;
      arguments.divisor = divisor;
      arguments.learning_rate = 0.1f;
      arguments.momentum = 0.9f;
      arguments.weight_decay = weight_decay;
      CheckSgd(problem, arguments);
      CheckMomentum(problem, arguments);
      arguments.dampening = 0.3f;
      CheckMomentum(problem, arguments);
      arguments.first_step = true;  // dampening does not apply to it
      CheckMomentum(problem, arguments);
    }
  }
}

void CheckAll(std::size_t k, std::size_t count, Content content) {
  SCOPED_TRACE("target " + std::string(TargetName()) + " k " + std::to_string(k) + " count " +
               std::to_string(count));
  Problem problem(k, count, content);
  CheckSums(problem);
  CheckUpdates(problem);
}

constexpr std::size_t kCounts[] = {0,  1,  2,  3,  7,  8,  9,  15,   16,
                                   17, 31, 32, 33, 63, 64, 65, 1000, 1023};

// Runs each test with one instruction set after another.
class KernelsOnTarget : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    SetFloatingPointMode();
    hwy::SetSupportedTargetsForTest(GetParam());
    ASSERT_STREQ(TargetName(), hwy::TargetName(GetParam()));
  }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

INSTANTIATE_TEST_SUITE_P(Machine, KernelsOnTarget,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& each) { return hwy::TargetName(each.param); });

TEST_P(KernelsOnTarget, FewInputsOfAnyLength) {
  for (std::size_t k = 1; k <= 17; ++k) {
    for (const std::size_t count : kCounts) CheckAll(k, count, Content::kOrdinary);
  }
}

TEST_P(KernelsOnTarget, SpecialValuesAnywhere) {
  for (const std::size_t k : {1u, 2u, 3u, 8u, 9u, 17u}) {
    for (const std::size_t count : kCounts) CheckAll(k, count, Content::kAnyBits);
  }
}

TEST_P(KernelsOnTarget, ManyInputsGoInPassesAndBlocks) {
  for (const std::size_t k : {9u, 17u, 24u, 25u, 33u}) {
    for (const std::size_t count : {1u, 33u, 2047u, 2048u, 2049u, 4096u + 5u}) {
      CheckAll(k, count, Content::kOrdinary);
    }
  }
}

TEST_P(KernelsOnTarget, AsManyInputsAsThereCanBe) {
  for (const std::size_t count : {1u, 65u, 2050u}) CheckAll(1024, count, Content::kOrdinary);
}

TEST_P(KernelsOnTarget, ASumOfNegativeZerosIsNegativeZero) {
  const std::vector<float> zeros(37, -0.0f);  // a fold that starts from +0 would lose the sign
  for (const std::size_t k : {1u, 2u, 20u}) {
    const std::vector<const float*> inputs(k, zeros.data());
    std::vector<float> output(zeros.size(), 1.0f);
    Sum(inputs, zeros.size(), output.data());
    EXPECT_EQ(FirstDifference(output.data(), zeros), zeros.size()) << "k " << k;
  }
}

TEST_P(KernelsOnTarget, OverflowFollowsTheOrderOfRanks) {
  const std::vector<float> huge(19, 3e38f);
  const std::vector<float> minus_huge(19, -3e38f);
  const std::vector<float> zero(19, 0.0f);
  const std::vector<float> infinite(19, std::numeric_limits<float>::infinity());
  std::vector<float> output(19);
  Sum(std::vector{huge.data(), minus_huge.data(), huge.data()}, 19, output.data());
  EXPECT_EQ(FirstDifference(output.data(), huge), 19u);
  Sum(std::vector{huge.data(), huge.data(), minus_huge.data()}, 19, output.data());
  EXPECT_EQ(FirstDifference(output.data(), infinite), 19u);
}

TEST_P(KernelsOnTarget, TheOutputMayBeAnyInput) {
  for (const std::size_t k : {1u, 3u, 8u, 9u, 30u}) {
    for (const std::size_t same : {std::size_t{0}, k / 2, k - 1}) {
      for (const std::size_t count : {5u, 64u, 1023u, 5000u}) {
        Problem problem(k, count, Content::kOrdinary);
        float* const output = problem.arrays[same].data();
        Sum(problem.inputs, count, output);
        EXPECT_EQ(FirstDifference(output, problem.sum), count)
            << "k " << k << " same " << same << " count " << count;
      }
    }
  }
}

// The folding rule: an accumulator takes a prefix of the ranks, then the rest. Same bits.
TEST_P(KernelsOnTarget, AFoldedPrefixGivesTheSameBits) {
  constexpr std::size_t kCount = 1023;
  Problem problem(12, kCount, Content::kOrdinary);
  for (std::size_t prefix = 1; prefix < 12; ++prefix) {
    Array accumulator(kCount, 1);
    Sum(Inputs(problem.inputs).first(prefix), kCount, accumulator.data());
    std::vector<const float*> rest(problem.inputs.begin() + static_cast<std::ptrdiff_t>(prefix) - 1,
                                   problem.inputs.end());
    rest[0] = accumulator.data();
    Array output(kCount, 0);
    Sum(rest, kCount, output.data());
    EXPECT_EQ(FirstDifference(output.data(), problem.sum), kCount) << "prefix " << prefix;
  }
}

TEST_P(KernelsOnTarget, NothingOutsideTheArraysIsWritten) {
  constexpr std::size_t kMargin = 32;  // two of the widest vectors
  for (const std::size_t count : kCounts) {
    Problem problem(3, count, Content::kOrdinary);
    std::vector<float> parameters(count + 2 * kMargin, 77.0f);
    std::vector<float> momentum(count + 2 * kMargin, 78.0f);
    SgdArguments arguments;
    arguments.learning_rate = 0.1f;
    arguments.first_step = true;
    SumMomentum(problem.inputs, count, arguments, parameters.data() + kMargin,
                momentum.data() + kMargin);
    for (std::size_t i = 0; i < kMargin; ++i) {
      EXPECT_EQ(parameters[i], 77.0f);
      EXPECT_EQ(momentum[i], 78.0f);
      EXPECT_EQ(parameters[kMargin + count + i], 77.0f);
      EXPECT_EQ(momentum[kMargin + count + i], 78.0f);
    }
  }
}

// The values are such that a fused multiply-add gives other bits than two roundings.
TEST_P(KernelsOnTarget, MultiplyAndAddRoundApart) {
  const float factor = 1.0f + 0x1p-12f;            // its square is 1 + 2^-11 + 2^-24,
  const float squared = Rounded(factor * factor);  // which rounds to 1 + 2^-11
  ASSERT_NE(std::fma(factor, factor, -squared), 0.0f);
  const std::vector<float> gradient(21, factor);
  std::vector<float> parameters(21, squared);
  SgdArguments arguments;
  arguments.learning_rate = factor;
  SumSgd(std::vector{gradient.data()}, 21, arguments, parameters.data());
  EXPECT_EQ(parameters, std::vector<float>(21, 0.0f));
}

TEST(Targets, NamesAreThoseOfTheMachineAndTheBestIsInUse) {
  hwy::SetSupportedTargetsForTest(0);
  const std::vector<const char*> names = SupportedTargetNames();
  ASSERT_FALSE(names.empty());
  EXPECT_STREQ(TargetName(), names.front());
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

// Without this, a build that lost run-time dispatch would pass all of the above.
TEST(Targets, MoreThanOneIsTestedWhereTheMachineHasMore) {
  const std::size_t tested = hwy::SupportedAndGeneratedTargets().size();
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  if (__builtin_cpu_supports("avx2")) {
    EXPECT_GE(tested, 3u);
    EXPECT_STRNE(TargetName(), "SSE4");
  }
  if (__builtin_cpu_supports("sse4.2")) {
    EXPECT_GE(tested, 2u);
  }
#endif
  EXPECT_GE(tested, 1u);
}

}  // namespace
}  // namespace phub::simd
