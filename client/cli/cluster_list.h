// The daemons of a whole cluster, for `phubctl server list`. One thread.
#pragma once

#include <optional>
#include <string>

#include "client/cli/cli.h"
#include "phub/v1/admin.pb.h"

namespace phub::client::cli {

struct ClusterList {
  std::string text;       // a table or JSON
  bool complete = false;  // every place has a daemon that answers
};

// Asks every daemon of the view. Nullopt: the daemon does not answer, or its cluster has no view.
// Prints problems to standard error.
std::optional<ClusterList> ListCluster(const Options& options);

// "serving", "draining: 5.0 s left"
std::string StateText(const v1::ServerInfo& server);

}  // namespace phub::client::cli
