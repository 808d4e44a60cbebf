#include <fmt/format.h>
#include <toml++/toml.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "common/base/status_text.h"
#include "common/base/suggest.h"
#include "server/config/config_sources.h"
#include "server/config/setting_table.h"

namespace phub::server {
namespace {

std::string PlaceOf(const std::string& path, const toml::source_region& region) {
  return fmt::format("{}:{}:{}", path, region.begin.line, region.begin.column);
}

const char* TypeName(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::floating_point: return "a floating-point number";
    default: return "a date or time";
  }
}

std::optional<RawValue> ToRaw(const toml::node& node) {
  if (const auto* text = node.as_string()) return RawValue(text->get());
  if (const auto* number = node.as_integer()) return RawValue(number->get());
  if (const auto* truth = node.as_boolean()) return RawValue(truth->get());
  return std::nullopt;
}

// The value as TOML, close to what the user wrote.
std::string Shown(const RawValue& raw) {
  if (const auto* text = std::get_if<std::string>(&raw)) return fmt::format("\"{}\"", *text);
  if (const auto* number = std::get_if<std::int64_t>(&raw)) return fmt::format("{}", *number);
  return std::get<bool>(raw) ? "true" : "false";
}

std::string DescribeUnknown(std::string_view key, const toml::node& node) {
  std::vector<std::string_view> known;
  for (const Setting& setting : AllSettings()) known.push_back(setting.name);
  const char* what = node.is_table() ? "table" : "setting";
  const std::string hint = DidYouMean(key, known);
  return fmt::format("unknown {} \"{}\"{}", what, key,
                     hint.empty() ? "; phubd --dump-config shows all settings" : hint);
}

void ReadEntry(const toml::key& key, const toml::node& node, const std::string& path,
               Assignments& result) {
  const std::string place = PlaceOf(path, key.source());
  const std::size_t index = FindSetting(key.str());
  if (index == AllSettings().size()) {
    result.problems.push_back(fmt::format("{}: {}", place, DescribeUnknown(key.str(), node)));
    return;
  }
  const Setting& setting = AllSettings()[index];
  const std::string value_place = PlaceOf(path, node.source());
  const std::optional<RawValue> raw = ToRaw(node);
  if (!raw) {
    result.problems.push_back(fmt::format("{}: {} cannot be {}; allowed: {}", value_place,
                                          setting.name, TypeName(node), Allowed(setting.kind)));
    return;
  }
  const auto value = ReadValue(setting.kind, *raw);
  const std::string shown = fmt::format("{} = {}", setting.name, Shown(*raw));
  if (!value.ok()) {
    result.problems.push_back(
        fmt::format("{}: {} {}", value_place, shown, MessageOf(value.status())));
    return;
  }
  result.found.push_back({index, SettingSource::kFile, place, shown, *value});
}

}  // namespace

Assignments ReadConfigText(std::string_view text, const std::string& path) {
  Assignments result;
  try {
    const toml::table table = toml::parse(text, std::string_view(path));
    for (const auto& [key, node] : table) ReadEntry(key, node, path, result);
  } catch (const toml::parse_error& error) {  // Debian's toml++ is built with exceptions
    result.problems.push_back(
        fmt::format("{}: not TOML: {}", PlaceOf(path, error.source()), error.description()));
  }
  return result;
}

Assignments ReadConfigFile(const std::string& path) {
  std::string text;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  bool read = file != nullptr;
  if (read) {
    char block[4096];
    for (std::size_t count; (count = std::fread(block, 1, sizeof block, file)) > 0;)
      text.append(block, count);
    read = std::ferror(file) == 0;
  }
  const int error = errno;
  if (file != nullptr) std::fclose(file);
  if (read) return ReadConfigText(text, path);
  Assignments result;
  result.problems.push_back(fmt::format("{}: cannot be read: {}", path, std::strerror(error)));
  return result;
}

}  // namespace phub::server
