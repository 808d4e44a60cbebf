// Exact fractions for bounds, loads and shares. Pure values; any thread. Invariant: denominator > 0
// and lowest terms; equal fractions therefore have equal numerators and denominators.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace phub::plan {

// Wide enough for the product of two 63-bit integers. __extension__ silences -Wpedantic.
__extension__ using Wide = __int128;

class Rational {
 public:
  constexpr Rational() = default;
  constexpr explicit Rational(std::int64_t whole) : numerator_(whole) {}

  // numerator/denominator in lowest terms. nullopt if the denominator is 0 or the result exceeds 63
  // bits.
  static std::optional<Rational> Make(Wide numerator, Wide denominator);
  // Parses "15/4" or "3". nullopt for other texts, including " 7 / 2 ".
  static std::optional<Rational> Parse(std::string_view text);

  std::int64_t numerator() const { return numerator_; }
  std::int64_t denominator() const { return denominator_; }
  // Rounds up to an integer. REQUIRES: the fraction is >= 0.
  std::int64_t Ceiling() const;
  double ToDouble() const;
  std::string ToString() const;  // "15/4", "8"

  friend bool operator==(const Rational&, const Rational&) = default;
  friend std::strong_ordering operator<=>(const Rational& a, const Rational& b);

 private:
  std::int64_t numerator_ = 0;
  std::int64_t denominator_ = 1;
};

// nullopt if the result exceeds 63 bits.
std::optional<Rational> Add(const Rational& a, const Rational& b);
std::optional<Rational> Multiply(const Rational& a, const Rational& b);

// Least common multiple of two positive numbers; nullopt if it exceeds `limit`.
std::optional<std::int64_t> CommonMultiple(std::int64_t a, std::int64_t b, std::int64_t limit);

}  // namespace phub::plan
