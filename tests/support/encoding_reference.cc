#include "tests/support/encoding_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace phub::simd::reference {
namespace {

using numeric::Encoding;
using numeric::GradientEncoding;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
void Append(std::vector<std::byte>& bytes, T value) {
  bytes.resize(bytes.size() + sizeof(value));
  std::memcpy(bytes.data() + bytes.size() - sizeof(value), &value, sizeof(value));
}
template <class T>
T Read(const std::byte* bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return value;
}

bool AllFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

std::vector<std::byte> EncodedInt8(std::span<const float> values) {
  std::vector<std::byte> scales, elements;
  for (std::size_t first = 0; first < values.size(); first += 256) {
    const auto block = values.subspan(first, std::min<std::size_t>(256, values.size() - first));
    float greatest = 0.0f;
    for (const float value : block) greatest = std::max(greatest, std::fabs(value));
    const float scale = AllFinite(block) ? greatest / 127.0f : kNan;
    Append(scales, scale);
    for (const float value : block) {
      const float q = scale > 0.0f ? std::nearbyint(value / scale) : 0.0f;
      Append(elements, static_cast<std::int8_t>(std::clamp(q, -127.0f, 127.0f)));
    }
  }
  scales.insert(scales.end(), elements.begin(), elements.end());
  return scales;
}

std::vector<std::size_t> Selected(const GradientEncoding& encoding, std::span<const float> values,
                                  std::uint64_t seed) {
  const std::size_t count = values.size();
  const std::size_t kept = numeric::KeptOf(encoding, count);
  std::vector<std::size_t> selected(count);
  std::iota(selected.begin(), selected.end(), std::size_t{0});
  if (encoding.kind == Encoding::kRandomK) {
    for (std::size_t i = 0; i < kept; ++i) {
      selected[i] = numeric::RandomPlace(seed, count, kept, i);
    }
  } else if (AllFinite(values)) {
    std::ranges::stable_sort(selected, [&](std::size_t a, std::size_t b) {
      return std::fabs(values[a]) > std::fabs(values[b]);
    });
  }
  selected.resize(kept);
  std::ranges::sort(selected);
  return selected;
}

std::vector<std::byte> EncodedSparse(const GradientEncoding& encoding,
                                     std::span<const float> values, std::uint64_t seed) {
  std::vector<std::byte> payload;
  if (encoding.kind == Encoding::kRandomK) Append(payload, seed);
  const std::vector<std::size_t> selected = Selected(encoding, values, seed);
  const bool finite = AllFinite(values);
  for (const std::size_t place : selected) Append(payload, finite ? values[place] : kNan);
  if (encoding.kind == Encoding::kRandomK) return payload;
  for (const std::size_t place : selected) {
    if (values.size() <= 65'536) {
      Append(payload, static_cast<std::uint16_t>(place));
    } else {
      Append(payload, static_cast<std::uint32_t>(place));
    }
  }
  return payload;
}

}  // namespace

std::vector<std::byte> Encoded(const GradientEncoding& encoding, std::span<const float> values,
                               std::vector<float>* residual, std::uint64_t seed) {
  std::vector<float> wanted(values.begin(), values.end());
  for (std::size_t i = 0; residual != nullptr && i < wanted.size(); ++i)
    wanted[i] += (*residual)[i];
  std::vector<std::byte> payload = encoding.kind == Encoding::kInt8
                                       ? EncodedInt8(wanted)
                                       : EncodedSparse(encoding, wanted, seed);
  if (residual == nullptr) return payload;
  const std::vector<float> decoded = Decoded(encoding, payload.data(), wanted.size());
  const std::size_t unit = encoding.kind == Encoding::kInt8 ? 256 : wanted.size();
  for (std::size_t first = 0; first < wanted.size(); first += unit) {
    const std::size_t size = std::min(unit, wanted.size() - first);
    const bool finite = AllFinite(std::span(wanted).subspan(first, size));
    for (std::size_t i = first; i < first + size; ++i) {
      (*residual)[i] = finite ? wanted[i] - decoded[i] : 0.0f;
    }
  }
  return payload;
}

std::vector<float> Decoded(const GradientEncoding& encoding, const std::byte* payload,
                           std::size_t count) {
  std::vector<float> values(count, 0.0f);
  const std::size_t kept = numeric::KeptOf(encoding, count);
  if (encoding.kind == Encoding::kInt8) {
    const std::byte* const elements = payload + (count + 255) / 256 * 4;
    for (std::size_t i = 0; i < count; ++i) {
      values[i] =
          static_cast<float>(Read<std::int8_t>(elements, i)) * Read<float>(payload, i / 256);
    }
  } else if (encoding.kind == Encoding::kTopK) {
    const std::byte* const indices = payload + kept * 4;
    for (std::size_t i = 0; i < kept; ++i) {
      const std::size_t place =
          count <= 65'536 ? Read<std::uint16_t>(indices, i) : Read<std::uint32_t>(indices, i);
      values[place] += Read<float>(payload, i);
    }
  } else {
    const auto seed = Read<std::uint64_t>(payload, 0);
    for (std::size_t i = 0; i < kept; ++i) {
      values[numeric::RandomPlace(seed, count, kept, i)] += Read<float>(payload + 8, i);
    }
  }
  return values;
}

std::vector<float> SumOfEncoded(const GradientEncoding& encoding,
                                std::span<const std::byte* const> payloads, std::size_t count) {
  std::vector<float> sum = Decoded(encoding, payloads[0], count);
  for (const std::byte* const payload : payloads.subspan(1)) {
    const std::vector<float> next = Decoded(encoding, payload, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += next[i];
  }
  return sum;
}

std::vector<float> Transmitted(const GradientEncoding& encoding, std::span<const float> gradient,
                               std::size_t chunk_elements, std::vector<float>* residual,
                               std::uint32_t key, std::uint64_t iteration) {
  std::vector<float> received;
  for (std::size_t first = 0; first < gradient.size(); first += chunk_elements) {
    const std::size_t size = std::min(chunk_elements, gradient.size() - first);
    const std::uint64_t seed = numeric::SeedOf(key, iteration, first / chunk_elements);
    std::vector<float> left;
    if (residual != nullptr) {
      const auto begin = residual->begin() + static_cast<std::ptrdiff_t>(first);
      left.assign(begin, begin + static_cast<std::ptrdiff_t>(size));
    }
    const auto payload = Encoded(encoding, gradient.subspan(first, size),
                                 residual == nullptr ? nullptr : &left, seed);
    std::ranges::copy(left, residual == nullptr
                                ? left.begin()
                                : residual->begin() + static_cast<std::ptrdiff_t>(first));
    const std::vector<float> decoded = Decoded(encoding, payload.data(), size);
    received.insert(received.end(), decoded.begin(), decoded.end());
  }
  return received;
}

}  // namespace phub::simd::reference
