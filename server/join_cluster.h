// How a daemon with a `place` learns its racks: it claims the place in etcd, waits until every
// place of the view has had a daemon, and takes their endpoints. One thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "server/config/settings.h"
#include "server/tenant/control_store.h"

namespace phub::server {

// What a starting daemon waits for, for /readyz. Any thread.
class StartState {
 public:
  void Set(std::string waits_for);
  std::string Get() const;

 private:
  mutable std::mutex mutex_;
  std::string waits_for_;
};

// Opens the control store of a daemon with a place, and joins the cluster. `waiting` is called
// every second at least. Errors as of OpenStore and JoinCluster.
absl::Status OpenAndJoin(Random& random, const std::function<void()>& waiting, StartState& state,
                         Settings& settings, std::unique_ptr<ControlStore>& store);

// Fills the settings from the view (view_settings.h). Calls `stopped` every few seconds.
// CANCELLED: it returned true. Other errors as of Membership::Claim, and INVALID_ARGUMENT: the
// settings do not fit the view. REQUIRES: the settings have a place.
absl::Status JoinCluster(Membership& membership, const std::function<bool()>& stopped,
                         StartState& state, Settings& settings);

}  // namespace phub::server
