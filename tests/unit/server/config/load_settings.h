// Loads phubd's settings from a test's arguments and files, for tests of their combinations.
#pragma once

#include <string>
#include <vector>

#include "server/config/config.h"

namespace phub::server {

inline Config Load(std::vector<const char*> flags,
                   const std::vector<std::string>& environment = {}) {
  flags.insert(flags.begin(), "phubd");
  return LoadConfig(flags, environment);
}

}  // namespace phub::server
