#include "server/config/reload.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "common/base/check.h"
#include "server/config/setting_table.h"

namespace phub::server {
namespace {

// The settings that SettingsAfterReload() changes.
constexpr std::array<std::string_view, 2> kReloaded = {"drain_timeout", "log_level"};

}  // namespace

ConfigChanges CompareConfigs(const Config& running, const Config& read) {
  PHUB_CHECK(running.effective.size() == read.effective.size());
  ConfigChanges changes;
  for (std::size_t i = 0; i < running.effective.size(); ++i) {
    if (running.effective[i].value == read.effective[i].value) continue;
    const std::string_view name = AllSettings()[i].name;
    const bool is_applied = std::find(kReloaded.begin(), kReloaded.end(), name) != kReloaded.end();
    (is_applied ? changes.applied : changes.need_restart).emplace_back(name);
  }
  return changes;
}

Settings SettingsAfterReload(const Settings& running, const Settings& read) {
  Settings settings = running;
  settings.drain_timeout = read.drain_timeout;
  settings.log_level = read.log_level;
  return settings;
}

}  // namespace phub::server
