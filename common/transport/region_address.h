// How a SharedAddress encodes a place in registered or shared memory: (region + 1, offset), so that
// 0 means "none". Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/ids.h"

namespace phub::transport {

inline constexpr unsigned kRegionOffsetBits = 48;
inline constexpr std::uint32_t kNoRegionIndex = UINT32_MAX;

struct RegionPlace {
  std::uint32_t index = kNoRegionIndex;  // kNoRegionIndex: the address is "none"
  std::uint64_t offset = 0;
};

constexpr SharedAddress PackRegion(std::uint32_t index, std::uint64_t offset) {
  return {(std::uint64_t{index} + 1) << kRegionOffsetBits | offset};
}
constexpr RegionPlace UnpackRegion(SharedAddress address) {
  return {.index = static_cast<std::uint32_t>(address.value >> kRegionOffsetBits) - 1,
          .offset = address.value & ((std::uint64_t{1} << kRegionOffsetBits) - 1)};
}

}  // namespace phub::transport
