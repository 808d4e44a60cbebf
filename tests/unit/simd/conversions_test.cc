// Conversions among f32, f16 and bf16, exhaustively. Every half is widened. For narrowing, tests
// every float on or next to a boundary between two halves, and a sweep of all floats (all 2^32 of
// them with PHUB_TEST_LONG=1).
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <vector>

#include "tests/support/simd_reference.h"
#include "tests/unit/simd/arrays.h"

namespace phub::simd {
namespace {

using reference::HalfLayout;
using reference::kBf16Layout;
using reference::kF16Layout;
using reference::NarrowHalf;
using reference::WidenHalf;

constexpr ElementType kHalves[] = {ElementType::kF16, ElementType::kBf16};

const HalfLayout& LayoutOf(ElementType half) {
  return half == ElementType::kF16 ? kF16Layout : kBf16Layout;
}

std::uint32_t BitsOf(float value) { return std::bit_cast<std::uint32_t>(value); }

template <class T>
const std::byte* BytesOf(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}
template <class T>
std::byte* BytesOf(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

std::vector<std::uint16_t> AllHalves() {
  std::vector<std::uint16_t> halves(65'536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  return halves;
}

// Collects floats, and compares their conversions on every target batch by batch. The length of a
// batch is odd, so that values occur in every lane and in the tail.
class NarrowingChecker {
 public:
  explicit NarrowingChecker(ElementType half) : half_(half) {
    SetFloatingPointMode();
    values_.reserve(kBatch);
  }
  ~NarrowingChecker() { hwy::SetSupportedTargetsForTest(0); }
  void Add(std::uint32_t bits) {
    values_.push_back(std::bit_cast<float>(bits));
    if (values_.size() == kBatch) Check();
  }
  void Check() {
    std::vector<std::uint16_t> expected;
    for (const float value : values_) expected.push_back(NarrowHalf(LayoutOf(half_), value));
    for (const std::int64_t target : targets_) {
      hwy::SetSupportedTargetsForTest(target);
      std::vector<std::uint16_t> halves(values_.size());
      Convert(ElementType::kF32, BytesOf(values_), half_, BytesOf(halves), values_.size());
      if (halves != expected) Report(halves, expected);
    }
    checked_ += values_.size();
    values_.clear();
  }
  std::uint64_t checked() const { return checked_; }

 private:
  void Report(const std::vector<std::uint16_t>& halves,
              const std::vector<std::uint16_t>& expected) {
    for (std::size_t i = 0; i < halves.size(); ++i) {
      if (halves[i] == expected[i] || differences_++ >= 10) continue;
      ADD_FAILURE() << std::hex << "float " << BitsOf(values_[i]) << " became " << halves[i]
                    << ", should be " << expected[i] << " (" << numeric::ToString(half_) << " on "
                    << TargetName() << ")";
    }
  }

  static constexpr std::size_t kBatch = 4'099;
  ElementType half_;
  std::vector<std::int64_t> targets_ = hwy::SupportedAndGeneratedTargets();
  std::vector<float> values_;
  std::uint64_t checked_ = 0;
  int differences_ = 0;
};

class ConversionsOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Machine, ConversionsOnTarget,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), NameOfTarget);

TEST_P(ConversionsOnTarget, EveryHalfIsWidenedExactlyOnAnyLane) {
  const std::vector<std::uint16_t> halves = AllHalves();
  for (const ElementType half : kHalves) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{7}, halves.size()}) {
      std::vector<float> floats(halves.size());
      for (std::size_t i = 0; i + count <= halves.size(); i += count) {
        Convert(half, BytesOf(halves) + 2 * i, ElementType::kF32, BytesOf(floats) + 4 * i, count);
      }
      for (std::size_t i = 0; i < halves.size() / count * count; ++i) {
        ASSERT_EQ(BitsOf(floats[i]), BitsOf(WidenHalf(LayoutOf(half), halves[i])))
            << numeric::ToString(half) << " " << i;
      }
    }
  }
}

TEST_P(ConversionsOnTarget, EveryHalfComesBackAsItWasAndNanCanonical) {
  const std::vector<std::uint16_t> halves = AllHalves();
  for (const ElementType half : kHalves) {
    std::vector<float> floats(halves.size());
    std::vector<std::uint16_t> back(halves.size());
    Convert(half, BytesOf(halves), ElementType::kF32, BytesOf(floats), halves.size());
    Convert(ElementType::kF32, BytesOf(floats), half, BytesOf(back), halves.size());
    const std::uint16_t infinity = half == ElementType::kF16 ? 0x7c00 : 0x7f80;
    const std::uint16_t nan = half == ElementType::kF16 ? 0x7e00 : 0x7fc0;
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const bool is_nan = (halves[i] & 0x7fff) > infinity;
      ASSERT_EQ(back[i], is_nan ? nan : halves[i]) << numeric::ToString(half) << " " << i;
    }
  }
}

TEST(NarrowingOnEveryTarget, FloatsAroundEveryBoundaryOfHalves) {
  for (const ElementType half : kHalves) {
    NarrowingChecker checker(half);
    const std::uint16_t infinity = half == ElementType::kF16 ? 0x7c00 : 0x7f80;
    for (std::uint16_t magnitude = 0; magnitude < infinity; ++magnitude) {
      const auto above = static_cast<std::uint16_t>(magnitude + 1);
      // Halfway to the next half, in double, since f32 may not represent it next to infinity.
      const double low = static_cast<double>(WidenHalf(LayoutOf(half), magnitude));
      const double high = above == infinity ? std::ldexp(1.0, half == ElementType::kF16 ? 16 : 128)
                                            : static_cast<double>(WidenHalf(LayoutOf(half), above));
      for (const double at : {low, low + (high - low) / 2}) {
        const std::uint32_t bits = BitsOf(static_cast<float>(at));
        for (std::uint32_t step = 0; step < 5; ++step) {
          checker.Add(bits + step - 2);
          checker.Add((bits + step - 2) ^ 0x80000000u);
        }
      }
    }
    checker.Check();
  }
}

TEST(NarrowingOnEveryTarget, FloatsFromAllOverTheRange) {
  const bool all = std::getenv("PHUB_TEST_LONG") != nullptr;
  const std::uint64_t stride = all ? 1 : 1'021;  // a prime, so that every low bit pattern occurs
  for (const ElementType half : kHalves) {
    NarrowingChecker checker(half);
    for (std::uint64_t bits = 0; bits < (1ull << 32); bits += stride) {
      checker.Add(static_cast<std::uint32_t>(bits));
    }
    checker.Check();
    EXPECT_EQ(checker.checked(), ((1ull << 32) + stride - 1) / stride);
  }
}

TEST_P(ConversionsOnTarget, FromOneHalfToTheOtherThroughFloat) {
  const std::vector<std::uint16_t> halves = AllHalves();
  for (const ElementType from : kHalves) {
    const ElementType to = from == ElementType::kF16 ? ElementType::kBf16 : ElementType::kF16;
    std::vector<std::uint16_t> converted(halves.size());
    Convert(from, BytesOf(halves), to, BytesOf(converted), halves.size());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const float value = WidenHalf(LayoutOf(from), halves[i]);
      ASSERT_EQ(converted[i], NarrowHalf(LayoutOf(to), value)) << i;
    }
  }
}

TEST_P(ConversionsOnTarget, TheSameTypeKeepsEveryBit) {
  SeededRandom random(7);
  for (const ElementType type : kElementTypes) {
    for (const std::size_t count : {0u, 1u, 17u, 1000u}) {
      Array input(type, count, Array::Use::kRead);
      FillRandom(type, Content::kAnyBits, random, input);
      Array output(type, count, Array::Use::kWritten);
      Convert(type, input.data(), type, output.data(), count);
      EXPECT_EQ(FirstDifference(type, output.data(), input.data(), count, false), count);
      EXPECT_TRUE(output.MarginsAreUntouched());
    }
  }
}

TEST_P(ConversionsOnTarget, NothingOutsideTheOutputIsWritten) {
  SeededRandom random(8);
  constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kF16, ElementType::kBf16};
  for (const ElementType from : kTypes) {
    for (const ElementType to : kTypes) {
      for (std::size_t count = 0; count < 70; ++count) {
        Array input(from, count, Array::Use::kRead);
        FillRandom(from, Content::kAnyBits, random, input);
        Array output(to, count, Array::Use::kWritten);
        Convert(from, input.data(), to, output.data(), count);
        ASSERT_TRUE(output.MarginsAreUntouched()) << count;
      }
    }
  }
}

// Checks the reference against values from the definitions of IEEE 754 and bfloat16.
TEST(HalfReference, AgreesWithKnownValues) {
  EXPECT_EQ(WidenHalf(kF16Layout, 0x3555), 0x1.554p-2f);
  EXPECT_EQ(WidenHalf(kF16Layout, 0x0001), 0x1p-24f);
  EXPECT_EQ(WidenHalf(kF16Layout, 0x7bff), 65504.0f);
  EXPECT_EQ(NarrowHalf(kF16Layout, 65519.996f), 0x7bff);
  EXPECT_EQ(NarrowHalf(kF16Layout, 65520.0f), 0x7c00);
  EXPECT_EQ(NarrowHalf(kF16Layout, 0x1p-25f), 0x0000);  // a tie, to even
  EXPECT_EQ(NarrowHalf(kF16Layout, 0x1.000002p-25f), 0x0001);
  EXPECT_EQ(NarrowHalf(kF16Layout, -0x1.ff8p-15f), 0x83ff);
  EXPECT_EQ(NarrowHalf(kF16Layout, 0x1.ffcp-15f), 0x0400);  // up to the smallest normal number
  EXPECT_EQ(NarrowHalf(kBf16Layout, 1.00390625f), 0x3f80);  // a tie, to even
  EXPECT_EQ(NarrowHalf(kBf16Layout, 1.01171875f), 0x3f82);  // a tie, to even
  EXPECT_EQ(NarrowHalf(kBf16Layout, 3.4e38f), 0x7f80);
  EXPECT_EQ(NarrowHalf(kBf16Layout, 0x1p-149f), 0x0000);
  EXPECT_EQ(WidenHalf(kBf16Layout, 0xc049), -3.140625f);
}

}  // namespace
}  // namespace phub::simd
