// 64-bit FNV-1a: the same on every host and with every standard library. Not for untrusted input:
// collisions are easy to construct.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace phub {

constexpr std::uint64_t Fnv1a(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

}  // namespace phub
