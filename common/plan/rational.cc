#include "common/plan/rational.h"

#include <fmt/core.h>

#include <charconv>
#include <limits>
#include <numeric>

namespace phub::plan {
namespace {

constexpr Wide kMax = std::numeric_limits<std::int64_t>::max();

Wide GreatestCommonDivisor(Wide a, Wide b) {
  while (b != 0) {
    const Wide rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

std::optional<std::int64_t> ParseWhole(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<Rational> Rational::Make(Wide numerator, Wide denominator) {
  if (denominator == 0) return std::nullopt;
  if (denominator < 0) {
    numerator = -numerator;
    denominator = -denominator;
  }
  const Wide divisor = GreatestCommonDivisor(numerator < 0 ? -numerator : numerator, denominator);
  numerator /= divisor;
  denominator /= divisor;
  if (numerator > kMax || numerator < -kMax || denominator > kMax) return std::nullopt;
  Rational result;
  result.numerator_ = static_cast<std::int64_t>(numerator);
  result.denominator_ = static_cast<std::int64_t>(denominator);
  return result;
}

std::optional<Rational> Rational::Parse(std::string_view text) {
  const std::size_t slash = text.find('/');
  const auto numerator = ParseWhole(text.substr(0, slash));
  if (!numerator) return std::nullopt;
  if (slash == std::string_view::npos) return Make(*numerator, 1);
  const auto denominator = ParseWhole(text.substr(slash + 1));
  if (!denominator || *denominator <= 0) return std::nullopt;
  return Make(*numerator, *denominator);
}

std::int64_t Rational::Ceiling() const {
  return numerator_ / denominator_ + (numerator_ % denominator_ > 0 ? 1 : 0);
}

double Rational::ToDouble() const {
  return static_cast<double>(numerator_) / static_cast<double>(denominator_);
}

std::string Rational::ToString() const {
  return denominator_ == 1 ? fmt::format("{}", numerator_)
                           : fmt::format("{}/{}", numerator_, denominator_);
}

std::strong_ordering operator<=>(const Rational& a, const Rational& b) {
  const Wide left = Wide{a.numerator_} * b.denominator_;
  const Wide right = Wide{b.numerator_} * a.denominator_;
  if (left == right) return std::strong_ordering::equal;
  return left < right ? std::strong_ordering::less : std::strong_ordering::greater;
}

std::optional<Rational> Add(const Rational& a, const Rational& b) {
  // Each product is below 2^126, so their sum fits.
  return Rational::Make(
      Wide{a.numerator()} * b.denominator() + Wide{b.numerator()} * a.denominator(),
      Wide{a.denominator()} * b.denominator());
}

std::optional<Rational> Multiply(const Rational& a, const Rational& b) {
  return Rational::Make(Wide{a.numerator()} * b.numerator(),
                        Wide{a.denominator()} * b.denominator());
}

std::optional<std::int64_t> CommonMultiple(std::int64_t a, std::int64_t b, std::int64_t limit) {
  const Wide multiple = Wide{a} / std::gcd(a, b) * b;
  if (multiple > limit) return std::nullopt;
  return static_cast<std::int64_t>(multiple);
}

}  // namespace phub::plan
