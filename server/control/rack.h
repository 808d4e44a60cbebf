// What the daemons of one rack must have in common. Pure functions.
#pragma once

#include <string>

#include "server/control/control.h"

namespace phub::server {

// Limits of what a worker may say of a rack.
inline constexpr std::size_t kDaemonsPerRackMax = 64;
inline constexpr std::uint32_t kCoresPerDaemonMax = 1024;

// 64 hexadecimal digits: the list of daemons, the versions of the protocols, and the defaults that
// jobs get, since a chunk must be cut the same everywhere.
std::string HashOfConfiguration(const ControlOptions& options);

}  // namespace phub::server
