// The daemons of the rack that the asked daemon belongs to. One thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <vector>

#include "client/cli/cli.h"
#include "phub/v1/admin.pb.h"

namespace phub::client::cli {

struct RackMember {
  Options options;      // endpoint: where it is asked
  grpc::Status status;  // of asking it
  v1::ServerInfo server;
};

// Every daemon of the rack, in its order; one of a rack of its own is alone. Fails only if the one
// that options name does not answer.
grpc::Status AskRack(const Options& options, std::vector<RackMember>& daemons);

}  // namespace phub::client::cli
