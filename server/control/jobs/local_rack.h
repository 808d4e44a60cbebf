// What the daemons of one rack must have in common. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/control/control.h"

namespace phub::server {

// Limits of what a worker may say of a rack.
inline constexpr std::size_t kDaemonsPerRackMax = 64;
inline constexpr std::uint32_t kCoresPerDaemonMax = 1024;

// 64 hexadecimal digits: the list of daemons, the versions of the protocols, and the defaults that
// jobs get, since a chunk must be cut the same everywhere.
// Of daemons that jobs may span racks with: their place among the racks, and the topology, too.
std::string HashOfConfiguration(const ControlOptions& options);
// What is wrong with the core loops that `who` says the daemons of this rack have; empty: nothing.
// core_count: this daemon's.
std::string ProblemInCores(const ControlOptions& options, std::size_t core_count,
                           const std::string& who, const std::vector<std::uint32_t>& cores);
// SHA-256 in 64 hexadecimal digits, and enough of that to tell two apart in a message.
std::string Sha256Hex(std::string_view text);
std::string Shortened(const std::string& hash);

}  // namespace phub::server
