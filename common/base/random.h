// All code draws random numbers through this interface, which makes a simulation reproducible from
// one seed. phubd and libphub use it for unguessable identifiers: nonces, session ids,
// incarnations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace phub {

class Random {
 public:
  virtual ~Random() = default;
  virtual std::uint64_t Next() = 0;  // uniform over 64 bits; one thread unless documented otherwise
  void Fill(std::span<std::byte> bytes);
};

// The kernel's generator (getrandom). Any thread.
class SystemRandom final : public Random {
 public:
  std::uint64_t Next() override;
};

// Deterministic (xoshiro256**, seeded through splitmix64), the same on every platform. One thread.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(std::uint64_t seed);
  std::uint64_t Next() override;
  // Uniform in [0, bound), by rejection; bound > 0. The distributions of std:: are not used because
  // they differ between standard libraries.
  std::uint64_t Below(std::uint64_t bound);
  // True with probability numerator/denominator.
  bool Chance(std::uint64_t numerator, std::uint64_t denominator);

 private:
  std::uint64_t state_[4];
};

}  // namespace phub
