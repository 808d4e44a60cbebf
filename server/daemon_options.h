// Converts the settings into options for the parts of a daemon. Pure.
#pragma once

#include <string>

#include "common/net/host_port.h"
#include "server/config/setting_kind.h"
#include "server/config/settings.h"
#include "server/control/control.h"
#include "server/peer_racks.h"

namespace phub::server {

// REQUIRES: the text of a setting that is an address.
net::HostAndPort Address(const std::string& text);
net::HostAndPort DataAddress(const Settings& settings);
// Empty: no control socket.
std::string ControlSocketPath(const Settings& settings);
// The host that clients use for lanes; empty: the host of the control plane that they connected to.
std::string LaneHost(const Settings& settings);
ControlOptions MakeControlOptions(const Settings& settings, const RackTopology& topology,
                                  const LaneTransports& transports);

}  // namespace phub::server
