// phubd's settings from what a test gives, for tests of what they mean together.
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
