// Asks all daemons of a rack. One thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <vector>

#include "client/cli/cli.h"
#include "phub/v1/admin.pb.h"

namespace phub::client::cli {

struct RackMember {
  Options options;      // with the endpoint of this daemon
  grpc::Status status;  // result of the call
  v1::ServerInfo server;
};

// Returns every daemon of the rack in the rack's order; only one without `daemons` in its
// configuration. Fails only if the daemon in `options` does not answer.
grpc::Status AskRack(const Options& options, std::vector<RackMember>& daemons);

}  // namespace phub::client::cli
