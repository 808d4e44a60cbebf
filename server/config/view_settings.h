// Settings of racks that come from the cluster's view instead of from the operator. Pure; any
// thread.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/view/view.h"
#include "server/config/settings.h"

namespace phub::server {

// INVALID_ARGUMENT: `place` is set together with settings that follow from it.
absl::Status CheckNoRackSettings(const Settings& settings);

// Sets daemons, self, racks, rack_self, aggregators, role, topology and the view. `endpoints` has
// every place of the view. INVALID_ARGUMENT: an endpoint is not valid, or other settings do not
// allow several racks. REQUIRES: a valid view that has the place of the settings.
absl::Status UseView(const view::View& view, const std::map<view::Place, std::string>& endpoints,
                     Settings& settings);

}  // namespace phub::server
