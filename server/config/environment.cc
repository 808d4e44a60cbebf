#include <fmt/format.h>

#include <array>

#include "common/base/status_text.h"
#include "common/base/suggest.h"
#include "server/config/config_sources.h"
#include "server/config/setting_table.h"

namespace phub::server {
namespace {

constexpr std::string_view kPrefix = "PHUB_";
constexpr std::string_view kConfigVariable = "PHUB_CONFIG";

// Variables of phub's other programs, scripts and tests; phubd ignores them. A name that ends in
// '_' matches every variable that begins with it.
constexpr auto kVariablesOfOthers = std::to_array<std::string_view>(
    {"PHUB_ENDPOINT",    "PHUB_TENANT",  "PHUB_TIMEOUT",       "PHUB_OUTPUT",
     "PHUB_JOB",         "PHUB_RANK",    "PHUB_WORLD_SIZE",    "PHUB_TRANSPORT",
     "PHUB_TOKEN_FILE",  "PHUB_CA_FILE", "PHUB_CERTIFICATE",   "PHUB_KEY",
     "PHUB_SERVER_NAME", "PHUB_LIBRARY", "PHUB_CONTEXT",       "PHUB_CONTEXTS",
     "PHUB_JOBS",        "PHUB_RUN",     "PHUB_TORCH_PYTHON",  "PHUB_TEST_",
     "PHUB_SIM_",        "PHUB_FUZZ_",   "PHUB_FLIGHT_FOLDER", "PHUB_TIMELINE",
     "PHUB_TIMELINE_"});

// Kubernetes sets variables in every container for every service whose name begins with "phub":
// PHUB_SERVICE_HOST, PHUB_PORT, PHUB_RACK7_PORT_7700_TCP_ADDR.
bool IsServiceLink(std::string_view name) {
  if (name.find("_SERVICE_HOST") != std::string_view::npos) return true;
  if (name.find("_SERVICE_PORT") != std::string_view::npos) return true;
  const std::size_t port = name.find("_PORT");
  if (port == std::string_view::npos) return false;
  const std::string_view rest = name.substr(port + std::string_view("_PORT").size());
  return rest.empty() || (rest.size() > 1 && rest[0] == '_' && rest[1] >= '0' && rest[1] <= '9');
}

bool IsKnownElsewhere(std::string_view name) {
  for (const std::string_view other : kVariablesOfOthers) {
    const bool is_prefix = other.back() == '_';
    if (is_prefix ? name.substr(0, other.size()) == other : name == other) return true;
  }
  return IsServiceLink(name);
}

std::string DescribeUnknown(std::string_view name) {
  std::vector<std::string> variables = {std::string(kConfigVariable)};
  for (const Setting& setting : AllSettings()) variables.push_back(setting.Variable());
  const std::vector<std::string_view> known(variables.begin(), variables.end());
  const std::string hint = DidYouMean(name, known);
  return fmt::format("{}: unknown PHUB_ variable{}", name,
                     hint.empty() ? "; unset it, or see phubd --help for all settings" : hint);
}

}  // namespace

Environment ReadEnvironment(std::span<const std::string> environment) {
  Environment result;
  const auto settings = AllSettings();
  for (const std::string& entry : environment) {
    if (entry.rfind(kPrefix, 0) != 0) continue;
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    const std::string text = entry.substr(equals + 1);
    if (name == kConfigVariable) {
      result.config_path = text;
      continue;
    }
    std::size_t index = 0;
    while (index < settings.size() && settings[index].Variable() != name) ++index;
    if (index == settings.size()) {
      if (!IsKnownElsewhere(name)) result.assignments.problems.push_back(DescribeUnknown(name));
      continue;
    }
    if (text.empty()) continue;
    const auto value = ReadText(settings[index].kind, text);
    if (!value.ok()) {
      result.assignments.problems.push_back(
          fmt::format("{}: \"{}\" {}", name, text, MessageOf(value.status())));
      continue;
    }
    result.assignments.found.push_back(
        {index, SettingSource::kEnvironment, name, fmt::format("{}={}", name, text), *value});
  }
  return result;
}

}  // namespace phub::server
