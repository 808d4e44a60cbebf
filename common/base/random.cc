#include "common/base/random.h"

#include <sys/random.h>

#include <cstring>

#include "common/base/check.h"

namespace phub {
namespace {

std::uint64_t RotateLeft(std::uint64_t value, int bits) {
  return (value << bits) | (value >> (64 - bits));
}

// Steele, Lea, Flood: spreads one seed over the generator's state.
std::uint64_t SplitMix64(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

void Random::Fill(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const std::uint64_t word = Next();
    const std::size_t count = bytes.size() < sizeof word ? bytes.size() : sizeof word;
    std::memcpy(bytes.data(), &word, count);
    bytes = bytes.subspan(count);
  }
}

std::uint64_t SystemRandom::Next() {
  std::uint64_t word = 0;
  const ssize_t got = getrandom(&word, sizeof word, 0);
  PHUB_CHECK(got == sizeof word, "getrandom returned {}", got);
  return word;
}

SeededRandom::SeededRandom(std::uint64_t seed) {
  for (std::uint64_t& word : state_) word = SplitMix64(seed);
}

// Blackman, Vigna: xoshiro256**.
std::uint64_t SeededRandom::Next() {
  const std::uint64_t result = RotateLeft(state_[1] * 5, 7) * 9;
  const std::uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = RotateLeft(state_[3], 45);
  return result;
}

std::uint64_t SeededRandom::Below(std::uint64_t bound) {
  PHUB_CHECK(bound > 0);
  const std::uint64_t threshold = (0 - bound) % bound;  // 2^64 mod bound: the biased low values
  for (;;) {
    const std::uint64_t value = Next();
    if (value >= threshold) return value % bound;
  }
}

bool SeededRandom::Chance(std::uint64_t numerator, std::uint64_t denominator) {
  return Below(denominator) < numerator;
}

}  // namespace phub
