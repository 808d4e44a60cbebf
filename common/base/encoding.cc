#include "common/base/encoding.h"

#include <cmath>
#include <cstring>

namespace phub::numeric {
namespace {

template <class Index>
bool Ascend(const std::byte* indices, std::size_t kept, std::size_t count) {
  std::uint64_t next = 0;  // the least index that is allowed
  for (std::size_t i = 0; i < kept; ++i) {
    Index index;
    std::memcpy(&index, indices + i * sizeof(Index), sizeof(Index));
    if (index < next || index >= count) return false;
    next = std::uint64_t{index} + 1;
  }
  return true;
}

bool AreScales(const std::byte* payload, std::size_t blocks) {
  for (std::size_t block = 0; block < blocks; ++block) {
    float scale;
    std::memcpy(&scale, payload + block * sizeof(float), sizeof(float));
    if (std::isinf(scale) || scale < 0.0f) return false;
  }
  return true;
}

}  // namespace

bool IsEncoded(const GradientEncoding& encoding, std::size_t count, const std::byte* payload) {
  const std::size_t kept = KeptOf(encoding, count);
  switch (encoding.kind) {
    case Encoding::kInt8: return AreScales(payload, Int8Blocks(count));
    case Encoding::kTopK:
      return IndexBytes(count) == sizeof(std::uint16_t)
                 ? Ascend<std::uint16_t>(payload + kept * sizeof(float), kept, count)
                 : Ascend<std::uint32_t>(payload + kept * sizeof(float), kept, count);
    case Encoding::kRandomK:
    case Encoding::kNone: break;
  }
  return true;
}

}  // namespace phub::numeric
