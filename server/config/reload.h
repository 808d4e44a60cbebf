// Which changes of a configuration that was read again take effect without a restart. Pure; any
// thread.
#pragma once

#include <string>
#include <vector>

#include "server/config/config.h"

namespace phub::server {

// Names of the settings that differ. Those in need_restart keep their old values until a restart.
struct ConfigChanges {
  std::vector<std::string> applied;
  std::vector<std::string> need_restart;
};
ConfigChanges CompareConfigs(const Config& running, const Config& read);

// `running`, with the values of `read` for the settings that can change without a restart.
Settings SettingsAfterReload(const Settings& running, const Settings& read);

}  // namespace phub::server
