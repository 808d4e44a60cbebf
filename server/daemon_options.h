// What the settings come to for the parts of a daemon. Pure.
#pragma once

#include <string>

#include "server/config/setting_kind.h"
#include "server/config/settings.h"
#include "server/control/control.h"
#include "server/peer_racks.h"

namespace phub::server {

// Of a setting that is an address.
HostAndPort Address(const std::string& text);
HostAndPort DataAddress(const Settings& settings);
// Empty: there is none.
std::string ControlSocketPath(const Settings& settings);
// The host that clients are told to reach lanes at; empty: where they reached the control plane.
std::string LaneHost(const Settings& settings);
ControlOptions MakeControlOptions(const Settings& settings, const RackTopology& topology,
                                  const LaneTransports& transports);

}  // namespace phub::server
