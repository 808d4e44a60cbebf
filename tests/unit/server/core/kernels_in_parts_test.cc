// Long rounds are computed in parts, with the same bits, and keep-alives are sent between the
// parts.
#include "server/core/kernels_in_parts.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "common/base/random.h"
#include "server/core/on_core_loop.h"
#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

class CountedWork final : public LongWork {
 public:
  int notices = 0;

 private:
  void OnLongWork() override { ++notices; }
};

constexpr std::size_t kCount = (1 << 20) + 77;  // elements
constexpr std::size_t kTerms = 64;              // 256 MiB are read

std::vector<float> Random(std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> values(kCount);
  for (float& value : values) {
    value = static_cast<float>(static_cast<std::int64_t>(random.Next() % 2001) - 1000) / 997;
  }
  return values;
}

const std::byte* Bytes(const std::vector<float>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}
std::byte* Bytes(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

class KernelsInPartsTest : public ::testing::Test {
 protected:
  KernelsInPartsTest() {
    for (std::size_t i = 0; i < kTerms; ++i) inputs_.push_back(Bytes(i % 2 == 0 ? even_ : odd_));
  }
  simd::Terms terms() const { return {Bytes(folded_), inputs_}; }

  const OnCoreLoop on_core_loop_;
  std::vector<float> even_ = Random(1);
  std::vector<float> odd_ = Random(2);
  std::vector<float> folded_ = Random(3);
  std::vector<const std::byte*> inputs_;
  CountedWork work_;
};

TEST_F(KernelsInPartsTest, AFoldHasTheSameBits) {
  std::vector<float> whole(kCount), parts(kCount);
  EXPECT_FALSE(
      simd::Fold(simd::ElementType::kF32, simd::Reduction::kSum, terms(), kCount, Bytes(whole)));
  EXPECT_FALSE(FoldInParts(&work_, simd::ElementType::kF32, simd::Reduction::kSum, terms(), kCount,
                           Bytes(parts)));
  EXPECT_EQ(std::memcmp(whole.data(), parts.data(), kCount * sizeof(float)), 0);
  EXPECT_GE(work_.notices, 6);
}

TEST_F(KernelsInPartsTest, ASumInFixedPointHasTheSameBits) {
  for (const std::uint32_t block : {350u, 848u, 37u}) {
    std::vector<float> whole(kCount), parts(kCount), applied(kCount);
    EXPECT_FALSE(simd::SumFixed(simd::ElementType::kF32, block, inputs_, kCount, Bytes(whole)));
    work_.notices = 0;
    EXPECT_FALSE(
        SumFixedInParts(&work_, simd::ElementType::kF32, block, inputs_, kCount, Bytes(parts)));
    EXPECT_GE(work_.notices, 6);
    EXPECT_EQ(std::memcmp(whole.data(), parts.data(), kCount * sizeof(float)), 0);
    simd::Round round;
    round.ranks = kTerms;
    simd::RoundMemory memory;
    memory.next_parameters = Bytes(applied);
    EXPECT_FALSE(ApplyFixedInParts(&work_, round, block, inputs_, kCount, memory));
    EXPECT_EQ(std::memcmp(whole.data(), applied.data(), kCount * sizeof(float)), 0);
  }
}

TEST_F(KernelsInPartsTest, AnUpdateHasTheSameBits) {
  simd::Round round;
  round.reduction = simd::Reduction::kMean;
  round.optimizer = Optimizer::kAdam;
  round.ranks = kTerms;
  round.arguments = optimizer::ArgumentsOf({.learning_rate = 0.125}, {}, 3);
  struct Memory {
    std::vector<float> parameters = Random(4);
    std::vector<float> next = std::vector<float>(kCount);
    std::vector<float> state0 = std::vector<float>(kCount, 0.25F);
    std::vector<float> state1 = std::vector<float>(kCount, 0.5F);
    std::vector<float> reply = std::vector<float>(kCount);
  } whole, parts;
  const auto run = [&](Memory& memory, const auto& apply) {
    std::byte* const replies[] = {Bytes(memory.reply)};
    simd::RoundMemory of;
    of.parameters = Bytes(memory.parameters);
    of.next_parameters = Bytes(memory.next);
    of.state[0] = Bytes(memory.state0);
    of.state[1] = Bytes(memory.state1);
    of.replies = replies;
    EXPECT_FALSE(apply(of));
  };
  run(whole, [&](const auto& of) { return simd::ApplyRound(round, terms(), kCount, of); });
  run(parts, [&](const auto& of) { return ApplyInParts(&work_, round, terms(), kCount, of); });
  EXPECT_EQ(whole.next, parts.next);
  EXPECT_EQ(whole.state0, parts.state0);
  EXPECT_EQ(whole.state1, parts.state1);
  EXPECT_EQ(whole.reply, parts.reply);
  EXPECT_GE(work_.notices, 6);
}

TEST_F(KernelsInPartsTest, ASumThatIsNotFiniteInAnyPartIsFound) {
  for (const std::size_t at : {std::size_t{0}, kCount / 2, kCount - 1}) {
    std::vector<float> sum(kCount);
    const float before = std::exchange(odd_[at], std::numeric_limits<float>::infinity());
    EXPECT_TRUE(FoldInParts(&work_, simd::ElementType::kF32, simd::Reduction::kSum, terms(), kCount,
                            Bytes(sum)));
    odd_[at] = before;
  }
}

TEST_F(KernelsInPartsTest, ShortWorkIsOnePartAndIsNotNoted) {
  std::vector<std::size_t> parts;
  InParts(&work_, 65536, 4, [&](std::size_t first, std::size_t size) {
    parts.push_back(first);
    parts.push_back(size);
  });
  EXPECT_EQ(parts, (std::vector<std::size_t>{0, 65536}));
  EXPECT_EQ(work_.notices, 0);
}

}  // namespace
}  // namespace phub::server
