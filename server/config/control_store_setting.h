// The setting control_store: which engine holds tenants, tokens, quotas and the audit log. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/config/settings.h"

namespace phub::server {

// The endpoints in "etcd:https://a:2379,https://b:2379", separated by commas; empty: the store is
// not etcd.
std::string EtcdEndpointsOf(const Settings& settings);
// With a control store that lasts, every call needs an identity.
bool HasIdentities(const Settings& settings);

// "sqlite:DIR" is another way to write state_dir = DIR: sets it. INVALID_ARGUMENT: the settings of
// the control store contradict each other, or one is missing.
absl::Status ResolveControlStore(Settings& settings);

}  // namespace phub::server
