// Which job a command means. One thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "client/cli/cli.h"

namespace phub::client::cli {

struct JobName {
  std::string tenant;  // empty: the daemon decides
  std::string name;
};

// Finds the job that the user calls `given`: "digits", or "acme/digits" with its tenant. Without
// --tenant it looks in all tenants that the caller may see. INVALID_ARGUMENT, naming the
// candidates, if several have such a job. If none has, `found` is what the user gave, and the
// daemon reports the error.
grpc::Status FindJob(const Options& options, const std::string& given, JobName& found);

}  // namespace phub::client::cli
