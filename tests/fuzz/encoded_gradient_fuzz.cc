// Payloads of compressed gradients. The first 8 bytes choose the encoding, its share and the number
// of elements; the rest is the payload, filled up with zeros. The daemon decodes any payload, also
// those that it refuses, because shared memory may change after the check. So no payload may lead
// outside of the arrays, and one that passes the check has the bits of the reference.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/simd/kernels.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/encoding_reference.h"

namespace {

using phub::numeric::Encoding;
using phub::numeric::GradientEncoding;

bool Same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 8) return 0;
  std::uint32_t share, elements;
  std::memcpy(&share, data, sizeof(share));
  std::memcpy(&elements, data + 4, sizeof(elements));
  GradientEncoding encoding{static_cast<Encoding>(1 + share % 3), 0};
  if (IsSparse(encoding.kind)) encoding.kept_millionths = 1 + share / 3 % phub::numeric::kKeptMax;
  const bool is_large = elements % 64 == 0;  // indices of 32 bits
  const std::size_t count = 1 + elements / 64 % 3000 + (is_large ? 1u << 16 : 0);
  std::vector<std::byte> payload(EncodedBytes(encoding, count));
  if (size > 8) std::memcpy(payload.data(), data + 8, std::min(payload.size(), size - 8));

  const bool is_good = phub::numeric::IsEncoded(encoding, count, payload.data());
  const std::byte* const ranks[] = {payload.data(), payload.data()};
  std::vector<float> sum(count);
  phub::simd::Fold(phub::numeric::ElementType::kF32, phub::simd::Reduction::kSum, {nullptr, ranks},
                   count, reinterpret_cast<std::byte*>(sum.data()), {encoding, count, 0});
  if (!is_good) return 0;
  const std::vector<float> expected = phub::simd::reference::SumOfEncoded(encoding, ranks, count);
  for (std::size_t i = 0; i < count; ++i) {
    PHUB_CHECK(Same(sum[i], expected[i]), "element={}", i);
  }
  return 0;
}
