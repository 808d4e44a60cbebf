// Arrays for the kernels with random contents, and tests that run once per instruction set of this
// machine.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/simd/kernels.h"
#include "hwy/targets.h"

namespace phub::simd {

inline constexpr ElementType kElementTypes[] = {
    ElementType::kF32, ElementType::kF16, ElementType::kBf16, ElementType::kF64,
    ElementType::kI32, ElementType::kI64, ElementType::kU8};
inline constexpr Reduction kReductions[] = {
    Reduction::kSum,     Reduction::kMean,       Reduction::kMin,       Reduction::kMax,
    Reduction::kProduct, Reduction::kBitwiseAnd, Reduction::kBitwiseOr, Reduction::kBitwiseXor};
// The optimizers of the table.
inline const std::vector<Optimizer> kOptimizers = [] {
  std::vector<Optimizer> all;
  for (const optimizer::Descriptor& row : optimizer::Descriptors()) all.push_back(row.optimizer);
  return all;
}();

// Aligned to the longest vectors, with exactly the requested bytes.
template <class T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};
  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* array, std::size_t /*count*/) { ::operator delete(array, kAlignment); }
  bool operator==(const AlignedAllocator&) const = default;
};

// `count` elements, aligned to an element and usually not to a vector (with offset 0: to all
// vectors). An array that is read ends where its allocation ends, so that AddressSanitizer detects
// a read past it. An array that is written has margins on both sides that must not change.
class Array {
 public:
  enum class Use { kRead, kWritten };
  Array(ElementType type, std::size_t count, Use use, std::size_t offset_elements = 1)
      : bytes_(count * numeric::ElementBytes(type)),
        margin_(use == Use::kWritten ? kMargin : 0),
        offset_(margin_ + offset_elements * numeric::ElementBytes(type)),
        storage_(offset_ + bytes_ + margin_, kUntouched) {}
  std::byte* data() { return storage_.data() + offset_; }
  const std::byte* data() const { return storage_.data() + offset_; }
  std::size_t bytes() const { return bytes_; }
  bool MarginsAreUntouched() const;

 private:
  static constexpr std::size_t kMargin = 128;  // two of the widest vectors
  static constexpr std::byte kUntouched{0xa5};
  std::size_t bytes_;
  std::size_t margin_;
  std::size_t offset_;
  std::vector<std::byte, AlignedAllocator<std::byte>> storage_;
};

// kOrdinary: signed values over several binades, so that nearly every operation rounds, and
// different orders of addition give different bits. kAnyBits: any bits, with many special values.
enum class Content { kOrdinary, kAnyBits };
void FillRandom(ElementType type, Content content, SeededRandom& random, Array& array);
// Zeros, ones, extremes, denormals, infinities and NaNs of a type, as bits.
std::vector<std::uint64_t> SpecialBits(ElementType type);

// The index of the first element whose bits differ, or `count`. With `any_nan`, all NaNs are equal.
std::size_t FirstDifference(ElementType type, const std::byte* actual, const std::byte* expected,
                            std::size_t count, bool any_nan);

// Runs each test with every instruction set in turn.
class OnTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    SetFloatingPointMode();
    hwy::SetSupportedTargetsForTest(GetParam());
    ASSERT_STREQ(TargetName(), hwy::TargetName(GetParam()));
  }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};
inline std::string NameOfTarget(const ::testing::TestParamInfo<std::int64_t>& each) {
  return hwy::TargetName(each.param);
}

}  // namespace phub::simd
