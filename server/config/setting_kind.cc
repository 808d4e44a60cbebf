#include "server/config/setting_kind.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <vector>

#include "common/base/check.h"
#include "common/base/cpu_topology.h"
#include "common/base/status_text.h"
#include "common/base/suggest.h"
#include "common/base/units.h"
#include "common/net/host_port.h"
#include "server/config/rack_settings.h"
#include "server/config/sum_settings.h"

namespace phub::server {
namespace {

constexpr std::string_view kAuto = "auto";

using Form = SettingKind::Form;

// "auto|on|off" -> {"auto", "on", "off"}.
std::vector<std::string_view> ChoicesOf(const SettingKind& kind) {
  std::vector<std::string_view> names;
  for (std::size_t begin = 0; begin <= kind.choices.size();) {
    const std::size_t end = std::min(kind.choices.find('|', begin), kind.choices.size());
    names.push_back(kind.choices.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') quoted += '\\';
    if (static_cast<unsigned char>(character) < 0x20) {
      quoted += fmt::format("\\u{:04X}", static_cast<unsigned char>(character));
    } else {
      quoted += character;
    }
  }
  return quoted + '"';
}

std::optional<std::uint64_t> ParseCount(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

absl::StatusOr<SettingValue> ReadChoice(const SettingKind& kind, std::string_view text) {
  const std::vector<std::string_view> names = ChoicesOf(kind);
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == text) return SettingValue(std::uint64_t{i});
  return absl::InvalidArgumentError(
      fmt::format("is not one of {}{}", Allowed(kind), DidYouMean(text, names)));
}

absl::StatusOr<SettingValue> CheckRange(const SettingKind& kind, std::uint64_t value) {
  if (value < kind.min || value > kind.max)
    return absl::InvalidArgumentError("is out of range; allowed: " + Allowed(kind));
  if (value % kind.multiple_of != 0)
    return absl::InvalidArgumentError(
        fmt::format("is not a multiple of {}; the next lower one is {}", kind.multiple_of,
                    ExactBytes(value / kind.multiple_of * kind.multiple_of)));
  return SettingValue(value);
}

absl::StatusOr<SettingValue> ReadCores(std::string_view text) {
  if (text == "auto") return SettingValue(std::string(text));
  if (const auto count = ParseCount(text)) {
    if (*count == 0 || *count > kCoreOsIndexMax)
      return absl::InvalidArgumentError(fmt::format(
          "is not a number of core loops from 1 to {}; for core {} alone write \"{}-{}\"",
          kCoreOsIndexMax, *count, *count, *count));
    return SettingValue(std::string(text));
  }
  const auto list = ParseCoreList(text);
  if (!list.ok())
    return absl::InvalidArgumentError(
        fmt::format("is not {}: {}", Allowed({.form = Form::kCoreList}), MessageOf(list.status())));
  return SettingValue(std::string(text));
}

absl::Status WrongType(const SettingKind& kind, std::string_view got) {
  const char* wanted = "a string in quotes";
  if (kind.form == Form::kSwitch) wanted = "true or false, without quotes";
  if (kind.form == Form::kBytes) wanted = "a size";
  return absl::InvalidArgumentError(
      fmt::format("is {}, but must be {} ({})", got, wanted, Allowed(kind)));
}

}  // namespace

std::string Allowed(const SettingKind& kind) {
  switch (kind.form) {
    case Form::kSwitch: return "true or false";
    case Form::kAddress: return "address:port";
    case Form::kDaemonList: return "address:port,address:port,...";
    case Form::kAggregatorList: return "path or address:port,...";
    case Form::kCoreList: return "auto, a number, or a list like 0-3,8";
    case Form::kPath: return "path";
    case Form::kNames: return "name,name:port,...";
    case Form::kDuration:
      return fmt::format("{} to {}", ExactDuration(static_cast<DurationNs>(kind.min)),
                         ExactDuration(static_cast<DurationNs>(kind.max)));
    case Form::kBytes: {
      const std::string range = fmt::format("{} to {}", ExactBytes(kind.min), ExactBytes(kind.max));
      if (kind.may_be_auto) return "auto, or " + range;
      return kind.multiple_of == 1 ? range
                                   : fmt::format("{}, a multiple of {}", range, kind.multiple_of);
    }
    case Form::kChoice: {
      const std::vector<std::string_view> names = ChoicesOf(kind);
      std::string text(names.front());
      for (std::size_t i = 1; i < names.size(); ++i)
        text += fmt::format("{}{}", i + 1 == names.size() ? " or " : ", ", names[i]);
      return text;
    }
  }
  return "";
}

absl::StatusOr<SettingValue> ReadText(const SettingKind& kind, std::string_view text) {
  switch (kind.form) {
    case Form::kSwitch:
      if (text == "true" || text == "1" || text == "on" || text == "yes") return SettingValue(true);
      if (text == "false" || text == "0" || text == "off" || text == "no")
        return SettingValue(false);
      return absl::InvalidArgumentError("is neither true nor false");
    case Form::kAddress: {
      if (text.empty() && kind.may_be_empty) return SettingValue(std::string());
      const auto address = net::ParseHostAndPort(text);
      if (!address.ok()) return address.status();
      return SettingValue(std::string(text));
    }
    case Form::kDaemonList: {
      const auto entries = ParseDaemonList(text);
      if (!entries.ok()) return entries.status();
      return SettingValue(std::string(text));
    }
    case Form::kAggregatorList: {
      const auto entries = ParseSumAggregators(text);
      if (!entries.ok()) return entries.status();
      return SettingValue(std::string(text));
    }
    case Form::kPath:
      if (text.find('\0') != std::string_view::npos)
        return absl::InvalidArgumentError("contains a zero byte, which a path cannot contain");
      return SettingValue(std::string(text));
    case Form::kNames:
      if (text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                 "_-.,:") != std::string_view::npos)
        return absl::InvalidArgumentError("is not a list of names separated by commas");
      return SettingValue(std::string(text));
    case Form::kCoreList: return ReadCores(text);
    case Form::kChoice: return ReadChoice(kind, text);
    case Form::kDuration: {
      const auto duration = ParseDuration(text);
      if (!duration)
        return absl::InvalidArgumentError(
            "is not a duration; write a number with h, m, s, ms, us or ns, like \"2s\"");
      return CheckRange(kind, static_cast<std::uint64_t>(*duration));
    }
    case Form::kBytes: {
      if (kind.may_be_auto && text == kAuto) return SettingValue(std::uint64_t{0});
      const auto bytes = ParseBytes(text);
      if (!bytes)
        return absl::InvalidArgumentError(
            "is not a size; write bytes, or a number with KiB, MiB, GiB or TiB, like \"64KiB\"");
      return CheckRange(kind, *bytes);
    }
  }
  return absl::InternalError("unknown form");
}

absl::StatusOr<SettingValue> ReadValue(const SettingKind& kind, const RawValue& raw) {
  if (const bool* value = std::get_if<bool>(&raw)) {
    if (kind.form != Form::kSwitch) return WrongType(kind, "a boolean");
    return SettingValue(*value);
  }
  if (const std::int64_t* value = std::get_if<std::int64_t>(&raw)) {
    if (kind.form == Form::kDuration)
      return absl::InvalidArgumentError(
          fmt::format("has no unit; write it in quotes, like \"{}s\"", *value));
    if (*value < 0 && (kind.form == Form::kBytes || kind.form == Form::kCoreList))
      return absl::InvalidArgumentError("is negative; allowed: " + Allowed(kind));
    if (kind.form == Form::kBytes) return CheckRange(kind, static_cast<std::uint64_t>(*value));
    if (kind.form == Form::kCoreList) return ReadCores(fmt::format("{}", *value));
    return WrongType(kind, "a number");
  }
  const std::string& text = std::get<std::string>(raw);
  if (kind.form == Form::kSwitch) return WrongType(kind, "a string");
  return ReadText(kind, text);
}

std::string ToToml(const SettingKind& kind, const SettingValue& value) {
  switch (kind.form) {
    case Form::kSwitch: return std::get<bool>(value) ? "true" : "false";
    case Form::kAddress:
    case Form::kDaemonList:
    case Form::kAggregatorList:
    case Form::kCoreList:
    case Form::kNames:
    case Form::kPath: return Quoted(std::get<std::string>(value));
    case Form::kChoice: return Quoted(ChoicesOf(kind).at(std::get<std::uint64_t>(value)));
    case Form::kDuration:
      return Quoted(ExactDuration(static_cast<DurationNs>(std::get<std::uint64_t>(value))));
    case Form::kBytes: {
      const std::uint64_t bytes = std::get<std::uint64_t>(value);
      return Quoted(kind.may_be_auto && bytes == 0 ? std::string(kAuto) : ExactBytes(bytes));
    }
  }
  return "";
}

bool IsBeyondLoopback(std::string_view text) {
  const auto address = net::ParseHostAndPort(text);
  PHUB_CHECK(address.ok(), "address={}", text);
  return !net::IsLoopbackHost(address->host);
}

}  // namespace phub::server
