// Encoded gradients: encoder and decoder have the bytes and bits of a plain reference on every
// instruction set, whatever is folded first and wherever a range begins; error feedback loses
// nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/simd/encode.h"
#include "tests/support/encoding_reference.h"
#include "tests/unit/simd/arrays.h"

namespace phub::simd {
namespace {

using numeric::Encoding;
using numeric::GradientEncoding;

using Floats = std::vector<float>;
using Payload = std::vector<std::byte>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const GradientEncoding kEncodings[] = {
    {Encoding::kInt8, 0},          {Encoding::kTopK, 10'000},    {Encoding::kTopK, 500'000},
    {Encoding::kTopK, 1},          {Encoding::kRandomK, 10'000}, {Encoding::kRandomK, 500'000},
    {Encoding::kRandomK, 300'001}, {Encoding::kRandomK, 1},
};
// Around blocks of int8, vectors, and the number of elements that indices of 16 bits can name.
constexpr std::size_t kCounts[] = {1, 2, 3, 7, 63, 255, 256, 257, 1000, 1024, 5000, 65'536, 65'537};

std::string NameOf(const GradientEncoding& encoding, std::size_t count) {
  return std::string(ToString(encoding.kind)) + " " + std::to_string(encoding.kept_millionths) +
         " of " + std::to_string(count);
}

Floats RandomFloats(std::size_t count, SeededRandom& random) {
  Floats values(count);
  for (float& value : values) {
    const auto exponent = static_cast<int>(random.Below(12)) - 6;
    value = std::ldexp(static_cast<float>(random.Below(1u << 24)) - 0x1p23f, exponent - 23);
  }
  return values;
}

Payload EncodedBy(const GradientEncoding& encoding, const Floats& values, Floats* residual,
                  std::uint64_t seed) {
  Payload payload(numeric::EncodedBytes(encoding, values.size()));
  EncodeScratch scratch;
  Encode(encoding, values.data(), residual == nullptr ? nullptr : residual->data(), values.size(),
         seed, payload.data(), scratch);
  return payload;
}

bool SameBits(const Floats& a, const Floats& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y) ||
           (std::isnan(x) && std::isnan(y));
  });
}

class Encodings : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Machine, Encodings,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), NameOfTarget);

TEST_P(Encodings, EncodesLikeTheReference) {
  SeededRandom random(1);
  for (const GradientEncoding& encoding : kEncodings) {
    for (const std::size_t count : kCounts) {
      Floats residual(count, 0.0f), expected_residual(count, 0.0f);
      for (int round = 0; round < 3; ++round) {
        const Floats values = RandomFloats(count, random);
        const std::uint64_t seed = random.Next();
        ASSERT_EQ(EncodedBy(encoding, values, nullptr, seed),
                  reference::Encoded(encoding, values, nullptr, seed))
            << NameOf(encoding, count);
        ASSERT_EQ(EncodedBy(encoding, values, &residual, seed),
                  reference::Encoded(encoding, values, &expected_residual, seed))
            << NameOf(encoding, count);
        ASSERT_TRUE(SameBits(residual, expected_residual)) << NameOf(encoding, count);
      }
    }
  }
}

TEST_P(Encodings, AnIteratedSumOfPayloadsAndTheResidualIsTheSumOfTheValues) {
  // With small integers all sums are exact in f32.
  SeededRandom random(2);
  for (const GradientEncoding& encoding : kEncodings) {
    if (encoding.kind == Encoding::kInt8) continue;
    constexpr std::size_t kCount = 700;
    Floats residual(kCount, 0.0f), sent(kCount, 0.0f), given(kCount, 0.0f);
    for (int round = 0; round < 50; ++round) {
      Floats values(kCount);
      for (float& value : values) value = static_cast<float>(random.Below(2001)) - 1000.0f;
      const Payload payload = EncodedBy(encoding, values, &residual, random.Next());
      const Floats decoded = reference::Decoded(encoding, payload.data(), kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        sent[i] += decoded[i];
        given[i] += values[i];
      }
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(sent[i] + residual[i], given[i]) << NameOf(encoding, kCount) << " element " << i;
    }
  }
}

// Payloads of several ranks, as the daemon has them.
struct Sent {
  Sent(const GradientEncoding& encoding, std::size_t ranks, std::size_t count,
       SeededRandom& random) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      payloads.push_back(EncodedBy(encoding, RandomFloats(count, random), nullptr, random.Next()));
    }
    for (const Payload& payload : payloads) places.push_back(payload.data());
  }
  std::vector<Payload> payloads;
  std::vector<const std::byte*> places;
};

TEST_P(Encodings, FoldsLikeTheReferenceWhateverIsFoldedFirst) {
  SeededRandom random(3);
  for (const GradientEncoding& encoding : kEncodings) {
    for (const std::size_t count : kCounts) {
      for (const std::size_t ranks : {1u, 2u, 5u, 17u}) {
        if (count > 5000 && ranks > 2) continue;
        const Sent sent(encoding, ranks, count, random);
        const Floats expected = reference::SumOfEncoded(encoding, sent.places, count);
        const std::size_t prefix = random.Below(ranks);
        const Encoded encoded{encoding, count, 0};
        Floats sum(count);
        auto* const bytes = reinterpret_cast<std::byte*>(sum.data());
        const std::span all(sent.places);
        if (prefix > 0) {
          Fold(ElementType::kF32, Reduction::kSum, {nullptr, all.first(prefix)}, count, bytes,
               encoded);
        }
        const bool found =
            Fold(ElementType::kF32, Reduction::kSum,
                 {prefix > 0 ? bytes : nullptr, all.subspan(prefix)}, count, bytes, encoded);
        ASSERT_FALSE(found);
        ASSERT_TRUE(SameBits(sum, expected))
            << NameOf(encoding, count) << ", " << ranks << " ranks, " << prefix << " first";
      }
    }
  }
}

TEST_P(Encodings, APartOfAChunkHasTheBitsOfTheWhole) {
  SeededRandom random(4);
  for (const GradientEncoding& encoding : kEncodings) {
    constexpr std::size_t kCount = 5000;
    const Sent sent(encoding, 3, kCount, random);
    const Floats expected = reference::SumOfEncoded(encoding, sent.places, kCount);
    for (int i = 0; i < 20; ++i) {
      const std::size_t first = random.Below(kCount);
      const std::size_t size = 1 + random.Below(kCount - first);
      Floats sum(size);
      Fold(ElementType::kF32, Reduction::kSum, {nullptr, sent.places}, size,
           reinterpret_cast<std::byte*>(sum.data()), {encoding, kCount, first});
      const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(first);
      ASSERT_TRUE(SameBits(sum, Floats(begin, begin + static_cast<std::ptrdiff_t>(size))))
          << NameOf(encoding, kCount) << " from " << first << ", " << size;
    }
  }
}

TEST_P(Encodings, ARoundHasTheBitsOfARoundOfTheDecodedSum) {
  SeededRandom random(5);
  for (const GradientEncoding& encoding : kEncodings) {
    for (const Optimizer optimizer : {Optimizer::kNone, Optimizer::kMomentum, Optimizer::kAdam}) {
      for (const double clip : {0.0, 0.5}) {
        constexpr std::size_t kCount = 2500;
        const Sent sent(encoding, 3, kCount, random);
        const Floats sum = reference::SumOfEncoded(encoding, sent.places, kCount);
        Floats next[2] = {RandomFloats(kCount, random), {}};
        next[1] = next[0];
        Floats states[2][3] = {{Floats(kCount), Floats(kCount), Floats(kCount)},
                               {Floats(kCount), Floats(kCount), Floats(kCount)}};
        for (const int i : {0, 1}) {
          Round round;
          round.optimizer = optimizer;
          round.reduction = Reduction::kMean;
          round.ranks = 3;
          round.arguments.learning_rate = 0.1;
          round.arguments.momentum = 0.9;
          round.arguments.beta1 = 0.9;
          round.arguments.beta2 = 0.99;
          round.arguments.epsilon = 1e-8;
          round.arguments.clip_value = clip;
          round.arguments.step = 1;
          if (i == 0) round.encoded = {encoding, kCount, 0};
          RoundMemory memory;
          memory.parameters = memory.next_parameters = reinterpret_cast<std::byte*>(next[i].data());
          for (std::size_t s = 0; s < kStatesMax && s < 3; ++s) {
            memory.state[s] = reinterpret_cast<std::byte*>(states[i][s].data());
          }
          const Terms terms = i == 0 ? Terms{nullptr, sent.places}
                                     : Terms{reinterpret_cast<const std::byte*>(sum.data()), {}};
          ASSERT_TRUE(IsSupported(round));
          ApplyRound(round, terms, kCount, memory);
        }
        ASSERT_TRUE(SameBits(next[0], next[1]))
            << NameOf(encoding, kCount) << " " << ToString(optimizer) << " clip " << clip;
      }
    }
  }
}

TEST_P(Encodings, NanAndInfinityAreSentAsNanAndLeaveNoResidual) {
  for (const GradientEncoding& encoding : kEncodings) {
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      constexpr std::size_t kCount = 600;
      Floats values(kCount, 1.0f), residual(kCount, 0.25f);
      values[300] = bad;
      const Payload payload = EncodedBy(encoding, values, &residual, 7);
      EXPECT_TRUE(numeric::IsEncoded(encoding, kCount, payload.data()));
      EXPECT_TRUE(HasNonFinite(ElementType::kF32, payload.data(), kCount, {encoding, kCount, 0}));
      for (const float value : residual) EXPECT_TRUE(std::isfinite(value));
      EXPECT_EQ(residual[300], 0.0f);
      const Payload next = EncodedBy(encoding, Floats(kCount, 1.0f), &residual, 8);
      EXPECT_FALSE(HasNonFinite(ElementType::kF32, next.data(), kCount, {encoding, kCount, 0}));
    }
  }
}

TEST_P(Encodings, Int8AtTheEndsOfTheRange) {
  const GradientEncoding int8{Encoding::kInt8, 0};
  const float greatest = std::numeric_limits<float>::max();
  const float least = std::numeric_limits<float>::denorm_min();
  // 190 * 2^-149 / 127 is rounded to 2^-149, so 190 exceeds 127 steps.
  for (const float value : {greatest, least, 190.0f * least, 1e-38f, 0.0f, -0.0f, 1.0f}) {
    for (const float sign : {1.0f, -1.0f}) {
      Floats values(300, sign * value), residual(300, 0.0f), expected(300, 0.0f);
      EXPECT_EQ(EncodedBy(int8, values, &residual, 0),
                reference::Encoded(int8, values, &expected, 0))
          << value;
      EXPECT_TRUE(SameBits(residual, expected)) << value;
    }
  }
}

TEST(IsEncoded, RefusesScalesAndIndicesThatNoEncoderMakes) {
  const GradientEncoding int8{Encoding::kInt8, 0};
  SeededRandom random(6);
  for (const float scale : {kInfinity, -kInfinity, -1.0f, -1e-45f}) {
    Payload payload = EncodedBy(int8, RandomFloats(600, random), nullptr, 0);
    EXPECT_TRUE(numeric::IsEncoded(int8, 600, payload.data()));
    std::memcpy(payload.data() + 8, &scale, 4);  // the last block's
    EXPECT_FALSE(numeric::IsEncoded(int8, 600, payload.data())) << scale;
  }
  const GradientEncoding topk{Encoding::kTopK, 10'000};  // 6 of 600
  for (const std::uint16_t index :
       std::initializer_list<std::uint16_t>{600, 65535, 0}) {  // past the end, and not ascending
    Payload payload = EncodedBy(topk, RandomFloats(600, random), nullptr, 0);
    EXPECT_TRUE(numeric::IsEncoded(topk, 600, payload.data()));
    std::memcpy(payload.data() + payload.size() - 2, &index, 2);
    EXPECT_FALSE(numeric::IsEncoded(topk, 600, payload.data())) << index;
  }
}

TEST(RandomPlace, AscendsWithinTheChunkAndReachesEveryElement) {
  for (const std::size_t count : {1u, 2u, 10u, 1000u}) {
    for (const std::size_t kept : {std::size_t{1}, (count + 1) / 2, (count + 6) / 7}) {
      std::vector<int> seen(count);
      for (std::uint64_t seed = 0; seed < 20 * count; ++seed) {
        std::size_t next = 0;
        for (std::size_t number = 0; number < kept; ++number) {
          const std::size_t place = numeric::RandomPlace(seed * 77, count, kept, number);
          ASSERT_GE(place, next);
          ASSERT_LT(place, count);
          next = place + 1;
          ++seen[place];
        }
      }
      if (kept * 20 < 100) continue;
      EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n > 0; }))
          << count << " " << kept;
    }
  }
}

}  // namespace
}  // namespace phub::simd
