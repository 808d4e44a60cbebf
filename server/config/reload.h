// What of a configuration that was read again can take effect in a daemon that runs. Pure; any
// thread.
#pragma once

#include <string>
#include <vector>

#include "server/config/config.h"

namespace phub::server {

// Settings that differ, by name. Those that need a restart keep their old values until then.
struct ConfigChanges {
  std::vector<std::string> applied;
  std::vector<std::string> need_restart;
};
ConfigChanges CompareConfigs(const Config& running, const Config& read);

// `running` with the values of `read` for the settings that can change.
Settings SettingsAfterReload(const Settings& running, const Settings& read);

}  // namespace phub::server
