// The kinds of settings: how a value is read from text or TOML, checked, and written back.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"
#include "common/base/clock.h"

namespace phub::server {

// A checked value: a switch, a number (count, bytes, ns, index of a choice) or a text.
using SettingValue = std::variant<bool, std::uint64_t, std::string>;

// A value as read from TOML or text, not yet checked. A flag or a variable is always text. A TOML
// value keeps its type, so that `insecure = "yes"` and `listen = 7700` are refused.
using RawValue = std::variant<bool, std::int64_t, std::string>;

struct SettingKind {
  enum class Form : std::uint8_t {
    kSwitch,
    kAddress,
    kDaemonList,
    kAggregatorList,
    kCoreList,
    kPath,
    kNames,
    kChoice,
    kDuration,
    kBytes
  };
  Form form = Form::kSwitch;
  bool may_be_empty = false;  // kAddress
  std::uint64_t min = 0;      // kDuration, kBytes
  std::uint64_t max = 0;
  std::uint64_t multiple_of = 1;  // kBytes
  bool may_be_auto = false;       // kBytes: "auto" is 0
  std::string_view choices = {};  // kChoice: "auto|on|off"
};

constexpr SettingKind Switch() { return {.form = SettingKind::Form::kSwitch}; }
constexpr SettingKind Address() { return {.form = SettingKind::Form::kAddress}; }
constexpr SettingKind AddressOrEmpty() {
  return {.form = SettingKind::Form::kAddress, .may_be_empty = true};
}
constexpr SettingKind DaemonList() { return {.form = SettingKind::Form::kDaemonList}; }
constexpr SettingKind AggregatorList() { return {.form = SettingKind::Form::kAggregatorList}; }
constexpr SettingKind CoreList() { return {.form = SettingKind::Form::kCoreList}; }
constexpr SettingKind Path() { return {.form = SettingKind::Form::kPath, .may_be_empty = true}; }
constexpr SettingKind Names() { return {.form = SettingKind::Form::kNames, .may_be_empty = true}; }
constexpr SettingKind Choice(std::string_view choices) {
  return {.form = SettingKind::Form::kChoice, .choices = choices};
}
constexpr SettingKind Duration(DurationNs min, DurationNs max) {
  return {.form = SettingKind::Form::kDuration,
          .min = static_cast<std::uint64_t>(min),
          .max = static_cast<std::uint64_t>(max)};
}
constexpr SettingKind BytesMultipleOf(std::uint64_t unit, std::uint64_t min, std::uint64_t max) {
  return {.form = SettingKind::Form::kBytes, .min = min, .max = max, .multiple_of = unit};
}
constexpr SettingKind Bytes(std::uint64_t min, std::uint64_t max) {
  return BytesMultipleOf(1, min, max);
}

constexpr SettingKind BytesOrAuto(std::uint64_t min, std::uint64_t max) {
  return {.form = SettingKind::Form::kBytes, .min = min, .max = max, .may_be_auto = true};
}

// The checked value, or InvalidArgument whose message continues "<name> = <value> ...", for example
// "is out of range; allowed: 100ms to 1h".
absl::StatusOr<SettingValue> ReadValue(const SettingKind& kind, const RawValue& raw);
// The same for text from a flag or a variable: "true", "8GiB", "2".
absl::StatusOr<SettingValue> ReadText(const SettingKind& kind, std::string_view text);

// The value as TOML: `true`, `"2s"`, `"64KiB"`. ReadValue() of it returns the same value.
std::string ToToml(const SettingKind& kind, const SettingValue& value);
// The allowed values, for help and errors: "100ms to 1h", "auto, on or off", "address:port".
std::string Allowed(const SettingKind& kind);

// A checked address:port whose host is not a loopback address, so other hosts may reach it.
bool IsBeyondLoopback(std::string_view address);

}  // namespace phub::server
