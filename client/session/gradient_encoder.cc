#include "client/session/gradient_encoder.h"

#include <algorithm>

namespace phub::client {

void GradientEncoder::Encode(const float* gradients, std::uint64_t iteration, bool skips) {
  const std::uint64_t count = definition_.element_count;
  const std::size_t in_chunk = definition_.chunk_elements;
  const std::size_t stride = numeric::EncodedStride(definition_.encoding, in_chunk);
  std::byte* const rest = skips ? nullptr : definition_.residual.data();
  auto* const residual = reinterpret_cast<float*>(rest);
  std::uint64_t chunk = 0;
  for (std::uint64_t first = 0; first < count; first += in_chunk, ++chunk) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(in_chunk, count - first));
    simd::Encode(definition_.encoding, gradients + first,
                 residual == nullptr ? nullptr : residual + first, size,
                 numeric::SeedOf(index_.value, iteration, chunk),
                 definition_.encoded + chunk * stride, scratch_);
  }
}

}  // namespace phub::client
