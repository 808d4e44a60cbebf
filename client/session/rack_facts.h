// What a worker derives from the answers of its rack's daemons. Any thread.
#pragma once

#include <string>

#include "client/session/endpoint.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

// The settings of two daemons that differ; their hashes if a daemon is older and sends no settings.
std::string DifferenceOf(const v1::Rack& one, const std::string& one_name, const v1::Rack& other,
                         const std::string& other_name);

// Where the job reaches the daemon that answered at `asked`. If that is a name of several
// addresses, any daemon of the rack may have answered. Lanes, and new connections after a loss,
// must reach the same one, so the result is the endpoint that this daemon has in its rack.
// Otherwise `asked`. Blocks as long as the resolver does. REQUIRES: rack.self() is one of its
// daemons.
Result<Endpoint> EndpointToKeep(const Endpoint& asked, const v1::Rack& rack);

}  // namespace phub::client
