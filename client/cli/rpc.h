// Calls to a daemon, and what is said when one fails. One thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "client/cli/cli.h"
#include "phub/v1/admin.grpc.pb.h"

namespace phub::client::cli {

// "phub://host:port", "host:port" or "host" (port 7700) as gRPC wants it.
std::string Target(const std::string& endpoint);
std::shared_ptr<grpc::Channel> Connect(const Options& options);
// Sets the deadline of options.timeout.
void Prepare(grpc::ClientContext& context, const Options& options);

// Says on standard error what went wrong, with which daemon, and what to try. Returns the exit
// code.
int Report(const grpc::Status& status, const Options& options);
ExitCode ExitCodeOf(const grpc::Status& status);

// One unary call of phub.v1.Admin:
//   Call(options, &v1::Admin::Stub::ListJobs, request, response)
template <typename Request, typename Response>
grpc::Status Call(const Options& options,
                  grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                          Response*),
                  const Request& request, Response& response) {
  const std::unique_ptr<v1::Admin::Stub> stub = v1::Admin::NewStub(Connect(options));
  grpc::ClientContext context;
  Prepare(context, options);
  return (stub.get()->*method)(&context, request, &response);
}

}  // namespace phub::client::cli
