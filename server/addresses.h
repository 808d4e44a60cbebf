// The addresses in the settings, as the daemon's parts want them. Pure; the settings were checked.
#pragma once

#include <string>

#include "server/config/settings.h"

namespace phub::server {

HostAndPort Address(const std::string& text);
HostAndPort DataAddress(const Settings& settings);
// Empty: there is none.
std::string ControlSocketPath(const Settings& settings);
// The host that clients are told to reach lanes at; empty: where they reached the control plane.
std::string LaneHost(const Settings& settings);

}  // namespace phub::server
