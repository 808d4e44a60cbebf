// What the daemons of one rack must have in common. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "server/control/control.h"

namespace phub::server {

// Limits of what a worker may say of a rack.
inline constexpr std::size_t kDaemonsPerRackMax = 64;
inline constexpr std::uint32_t kCoresPerDaemonMax = 1024;

// 64 hexadecimal digits: the list of daemons, the versions of the protocols, and the defaults that
// jobs get, since a chunk must be cut the same everywhere.
std::string HashOfConfiguration(const ControlOptions& options);
// SHA-256 in 64 hexadecimal digits, and enough of that to tell two apart in a message.
std::string Sha256Hex(std::string_view text);
std::string Shortened(const std::string& hash);

}  // namespace phub::server
