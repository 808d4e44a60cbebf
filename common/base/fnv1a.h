// FNV-1a of 64 bits: the same on every host, whatever its standard library. For telling apart and
// spreading what nobody forges: collisions are easily made.
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
