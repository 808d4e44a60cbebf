// Opens the control store that the settings name.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "server/config/settings.h"
#include "server/etcd/etcd_store.h"
#include "server/tenant/control_store.h"

namespace phub::server {

// The options of control_store = "etcd:...".
absl::StatusOr<etcd::StoreOptions> EtcdOptions(const Settings& settings);

// SIGTERM or SIGINT is pending: main() has blocked these signals and waits for them after the
// start.
bool IsAskedToStop();

// In memory without state_dir and control_store. Waits for etcd, and calls `waiting` at least every
// few seconds meanwhile. CANCELLED: SIGTERM or SIGINT is pending. `random` must outlive the store.
absl::StatusOr<std::unique_ptr<ControlStore>> OpenStore(const Settings& settings, Random& random,
                                                        const std::function<void()>& waiting);

}  // namespace phub::server
