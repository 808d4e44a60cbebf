// The settings place and advertise: where this daemon is in the cluster's view, and where others
// reach it. Pure; any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/view/view.h"
#include "server/config/settings.h"

namespace phub::server {

// INVALID_ARGUMENT: the settings are not valid, or contradict others.
absl::Status CheckPlace(const Settings& settings);
// `advertise`, or else `listen`.
const std::string& AdvertisedEndpoint(const Settings& settings);
// An empty group: the daemon has no place. REQUIRES: CheckPlace.
view::Place ViewPlaceOf(const Settings& settings);

}  // namespace phub::server
