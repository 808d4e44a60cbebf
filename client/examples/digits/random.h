// A small deterministic generator (splitmix64). It gives the same numbers on every machine, so
// every rank and the serial run shuffle and initialize in the same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace digits {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // In [0, 1), a multiple of 2^-24: exact in a float.
  float Uniform() { return static_cast<float>(Next() >> 40) * 0x1p-24f; }

  // Fisher-Yates. For the sizes used here, the bias of the modulo is less than 2^-50.
  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (std::size_t left = values.size(); left > 1; --left)
      std::swap(values[left - 1], values[static_cast<std::size_t>(Next() % left)]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace digits
