// Compares norms and scaling with the plain definition, bit by bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "common/base/random.h"
#include "common/simd/kernels.h"
#include "tests/support/simd_reference.h"

namespace phub::simd {
namespace {

template <typename T>
class Norm : public ::testing::Test {
 protected:
  static constexpr ElementType kType =
      std::is_same_v<T, float> ? ElementType::kF32 : ElementType::kF64;
  static std::vector<T> Draw(std::size_t count) {
    SeededRandom random(count + 1);
    std::vector<T> values(count);
    for (T& value : values) {
      const double unit = static_cast<double>(random.Below(1u << 30)) * 0x1p-29 - 1.0;
      value = static_cast<T>(std::ldexp(unit, static_cast<int>(random.Below(40)) - 20));
    }
    return values;
  }
  static std::byte* BytesOf(std::vector<T>& values) {
    return reinterpret_cast<std::byte*>(values.data());
  }
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Norm, Types);

TYPED_TEST(Norm, DividesAndAddsUpTheSquaresInTheOrderThatIsWritten) {
  using T = TypeParam;
  for (std::size_t count = 0; count <= 100; ++count) {
    for (const std::uint32_t divisor : {1u, 3u, 1024u}) {
      std::vector<T> values = this->Draw(count);
      std::vector<T> divided = values;
      for (T& value : divided) value = reference::Rounded<T>(value / static_cast<T>(divisor));
      const double squared = DivideAndSquare(this->kType, divisor, this->BytesOf(values), count);
      EXPECT_EQ(values, divided) << count;
      EXPECT_EQ(std::bit_cast<std::uint64_t>(squared),
                std::bit_cast<std::uint64_t>(reference::SquaredNorm(divided, 0, count)))
          << count;
    }
  }
}

TYPED_TEST(Norm, ScalesByTheFactorRoundedToTheElements) {
  using T = TypeParam;
  std::vector<T> values = this->Draw(77);
  std::vector<T> expected = values;
  for (T& value : expected) value = reference::Rounded<T>(value * static_cast<T>(0.1));
  Scale(this->kType, 0.1, this->BytesOf(values), values.size());
  EXPECT_EQ(values, expected);
}

TYPED_TEST(Norm, ShowsWhatIsNotFinite) {
  using T = TypeParam;
  std::vector<T> values(20, T{1});
  values[13] = std::numeric_limits<T>::quiet_NaN();
  EXPECT_TRUE(std::isnan(DivideAndSquare(this->kType, 2, this->BytesOf(values), values.size())));
  values[13] = -std::numeric_limits<T>::infinity();
  EXPECT_TRUE(std::isinf(DivideAndSquare(this->kType, 2, this->BytesOf(values), values.size())));
}

}  // namespace
}  // namespace phub::simd
