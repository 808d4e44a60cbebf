// Passes on that a daemon of the view is at another endpoint than before.
#pragma once

#include "server/config/settings.h"
#include "server/control/ports/control_thread.h"
#include "server/control/rpc/peer_links.h"
#include "server/control/rpc/rack_relay.h"
#include "server/tenant/membership.h"

namespace phub::server {

// Links and relays reconnect, and workers that join get the endpoint. `settings` come from a
// view. All of them must outlive the membership; links and relay may be null.
void FollowEndpoints(Membership& membership, const Settings& settings, ControlThread& control,
                     PeerLinks* links, RackRelay* relay);

}  // namespace phub::server
