#include "common/base/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

namespace phub {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t scale;
};

// Largest first: Exact() uses the first unit that divides the value.
constexpr std::array kDurationUnits = {
    Unit{"h", 3'600'000'000'000}, Unit{"m", 60'000'000'000}, Unit{"s", 1'000'000'000},
    Unit{"ms", 1'000'000},        Unit{"us", 1'000},         Unit{"ns", 1}};
constexpr std::array kByteUnits = {Unit{"TiB", kTebibyte}, Unit{"GiB", kGibibyte},
                                   Unit{"MiB", kMebibyte}, Unit{"KiB", kKibibyte}, Unit{"", 1}};
constexpr std::array kByteUnitsAlso = {  // accepted, but never written
    Unit{"B", 1}, Unit{"KB", 1'000}, Unit{"MB", 1'000'000}, Unit{"GB", 1'000'000'000},
    Unit{"TB", 1'000'000'000'000}};

// Standard C++ has no 128-bit integers; __extension__ silences -Wpedantic.
__extension__ using Wide = unsigned __int128;

constexpr std::uint64_t kValueMax = std::numeric_limits<std::int64_t>::max();

bool IsDigit(char character) { return character >= '0' && character <= '9'; }

// "12.5" times scale, if that is a whole number of at most 63 bits. Exact: no floating point.
std::optional<std::uint64_t> Scale(std::string_view number, std::uint64_t scale) {
  const std::size_t point = number.find('.');
  const std::string_view whole = number.substr(0, point);
  std::string_view fraction;
  if (point != std::string_view::npos) {
    fraction = number.substr(point + 1);
    if (fraction.empty()) return std::nullopt;
  }
  if (whole.empty()) return std::nullopt;
  Wide digits = 0;
  Wide divisor = 1;
  constexpr std::size_t kDigitsMax = 19;  // multiplied by a scale of 2^42, it fits 128 bits
  if (whole.size() + fraction.size() > kDigitsMax) return std::nullopt;
  for (const std::string_view part : {whole, fraction}) {
    for (const char digit : part) {
      if (!IsDigit(digit)) return std::nullopt;
      digits = digits * 10 + static_cast<unsigned>(digit - '0');
    }
  }
  for (std::size_t i = 0; i < fraction.size(); ++i) divisor *= 10;
  const Wide product = digits * scale;
  if (product % divisor != 0 || product / divisor > kValueMax) return std::nullopt;
  return static_cast<std::uint64_t>(product / divisor);
}

struct NumberAndUnit {
  std::string_view number;
  std::string_view unit;
};

NumberAndUnit Split(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && (IsDigit(text[end]) || text[end] == '.')) ++end;
  std::string_view unit = text.substr(end);
  if (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  return {text.substr(0, end), unit};
}

template <typename Units>
const Unit* Find(const Units& units, std::string_view name) {
  for (const Unit& unit : units)
    if (unit.name == name) return &unit;
  return nullptr;
}

template <typename Units>
std::string Exact(const Units& units, std::uint64_t value) {
  for (const Unit& unit : units)
    if (value % unit.scale == 0 && value != 0)
      return fmt::format("{}{}", value / unit.scale, unit.name);
  return fmt::format("0{}", units.back().name);
}

// Three significant digits, without trailing zeros; 999.6 becomes 1000 in the same unit.
std::string ThreeDigits(double value) {
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::string text = fmt::format("{:.{}f}", value, decimals);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

std::string TwoUnits(std::uint64_t large, const char* large_name, std::uint64_t small,
                     const char* small_name) {
  if (small == 0) return fmt::format("{} {}", large, large_name);
  return fmt::format("{} {} {} {}", large, large_name, small, small_name);
}

}  // namespace

std::optional<DurationNs> ParseDuration(std::string_view text) {
  const NumberAndUnit parts = Split(text);
  const Unit* unit = Find(kDurationUnits, parts.unit);
  if (unit == nullptr) return std::nullopt;
  const auto value = Scale(parts.number, unit->scale);
  if (!value) return std::nullopt;
  return static_cast<DurationNs>(*value);
}

std::optional<std::uint64_t> ParseBytes(std::string_view text) {
  const NumberAndUnit parts = Split(text);
  const Unit* unit = Find(kByteUnits, parts.unit);
  if (unit == nullptr) unit = Find(kByteUnitsAlso, parts.unit);
  if (unit == nullptr) return std::nullopt;
  return Scale(parts.number, unit->scale);
}

std::string ExactDuration(DurationNs duration) {
  if (duration == 0) return "0s";
  const auto magnitude = static_cast<std::uint64_t>(duration < 0 ? -duration : duration);
  return fmt::format("{}{}", duration < 0 ? "-" : "", Exact(kDurationUnits, magnitude));
}

std::string ExactBytes(std::uint64_t bytes) { return Exact(kByteUnits, bytes); }

std::string HumanDuration(DurationNs duration) {
  if (duration < 0) return fmt::format("-{}", HumanDuration(-duration));
  const auto magnitude = static_cast<std::uint64_t>(duration);
  const std::uint64_t seconds = magnitude / 1'000'000'000;
  if (seconds >= 86'400) return TwoUnits(seconds / 86'400, "d", seconds / 3'600 % 24, "h");
  if (seconds >= 3'600) return TwoUnits(seconds / 3'600, "h", seconds / 60 % 60, "min");
  if (seconds >= 60) return TwoUnits(seconds / 60, "min", seconds % 60, "s");
  const auto value = static_cast<double>(magnitude);
  if (magnitude >= 1'000'000'000) {  // one decimal is enough: "1.3 s", not "1.27 s"
    return fmt::format("{:.1f} s", value / 1e9);
  }
  if (magnitude >= 1'000'000) return ThreeDigits(value / 1e6) + " ms";
  if (magnitude >= 1'000) return ThreeDigits(value / 1e3) + " us";
  return fmt::format("{} ns", magnitude);
}

std::string HumanBytes(std::uint64_t bytes) {
  for (const Unit& unit : kByteUnits) {
    if (unit.scale == 1 || bytes < unit.scale) continue;
    return fmt::format("{} {}",
                       ThreeDigits(static_cast<double>(bytes) / static_cast<double>(unit.scale)),
                       unit.name);
  }
  return fmt::format("{} B", bytes);
}

}  // namespace phub
