#include "common/base/named_values.h"

#include <fmt/format.h>

#include <map>

#include "common/base/printable.h"

namespace phub {
namespace {

constexpr std::size_t kDifferencesShown = 4;
constexpr std::size_t kTextBytesMax = 96;  // for a name or a value

using ValueByName = std::map<std::string_view, std::string_view>;

ValueByName IndexOf(const NamedValues& values) {
  ValueByName index;
  for (const NamedValue& each : values) index.emplace(each.name, each.value);
  return index;
}

// "4096 at rack 1", "not set at rack 1"
std::string Side(const ValueByName& values, std::string_view name, std::string_view who) {
  const auto found = values.find(name);
  const std::string text =
      found == values.end() ? "not set" : Printable(found->second, kTextBytesMax);
  return fmt::format("{} at {}", text, who);
}

}  // namespace

std::string DescribeDifferences(const NamedValues& ones, std::string_view one,
                                const NamedValues& others, std::string_view other) {
  const ValueByName of_one = IndexOf(ones);
  const ValueByName of_other = IndexOf(others);
  std::string text;
  std::size_t count = 0;
  const auto add = [&](std::string_view name) {
    if (++count > kDifferencesShown) return;
    text +=
        fmt::format("{}{} is {} and {}", text.empty() ? "" : "; ", Printable(name, kTextBytesMax),
                    Side(of_one, name, one), Side(of_other, name, other));
  };
  for (const NamedValue& each : ones) {
    const auto found = of_other.find(each.name);
    if (found == of_other.end() || found->second != each.value) add(each.name);
  }
  for (const NamedValue& each : others) {
    if (!of_one.contains(each.name)) add(each.name);
  }
  if (count > kDifferencesShown) {
    text += fmt::format("; and {} more differences", count - kDifferencesShown);
  }
  return text;
}

}  // namespace phub
