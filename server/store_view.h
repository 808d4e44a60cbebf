// `phubctl store set-view`: declares the view of a cluster in etcd, before its daemons start.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/config/settings.h"
#include "server/tenant/control_store.h"

namespace phub::server {

// Creates the cluster and its token key if they do not exist. `store`: "etcd:URL,...". `file`: the
// view (common/view/view_toml.h). `expect`: the number that the present view must have; empty: any.
// Prints the declared view. UNAVAILABLE: etcd does not answer.
absl::Status DeclareViewIn(const std::string& store, Settings settings, const std::string& file,
                           const std::string& expect, const AuditNote& note);

}  // namespace phub::server
