// Little-endian loads and stores at any alignment, byte by byte: portable, and compilers emit one
// instruction for each. REQUIRES: the caller has checked the bounds. Any thread.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace phub::wire {

template <std::unsigned_integral T>
T LoadLittleEndian(const std::byte* bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    const T part = std::to_integer<T>(bytes[i]);
    value = static_cast<T>(value | static_cast<T>(part << (8 * i)));
  }
  return value;
}

template <std::unsigned_integral T>
void StoreLittleEndian(T value, std::byte* bytes) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes[i] = static_cast<std::byte>(static_cast<std::uint8_t>(value >> (8 * i)));
  }
}

inline bool AllZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace phub::wire
