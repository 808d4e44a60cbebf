// phubctl health: calls the standard gRPC health service, as orchestrators do.
#include <fmt/format.h>
#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>

#include <future>

#include "client/cli/cli.h"
#include "client/cli/rpc.h"

namespace phub::client::cli {
namespace {

// grpc.health.v1.Health/Check. HealthCheckRequest is one string and HealthCheckResponse one enum,
// both field 1. On the wire they equal these wrappers, so phub needs no copy of health.proto.
using Request = google::protobuf::StringValue;  // the service; empty: the daemon as a whole
using Response = google::protobuf::Int32Value;
constexpr const char* kMethod = "/grpc.health.v1.Health/Check";
constexpr std::int32_t kServing = 1;

grpc::Status Check(const Options& options, Response& response) {
  std::shared_ptr<grpc::Channel> channel;
  if (grpc::Status status = Connect(options, channel); !status.ok()) return status;
  grpc::TemplatedGenericStub<Request, Response> stub(channel);
  grpc::ClientContext context;
  Prepare(context, options);
  const Request request;
  std::promise<grpc::Status> answered;
  stub.UnaryCall(&context, kMethod, grpc::StubOptions(), &request, &response,
                 [&answered](grpc::Status status) { answered.set_value(std::move(status)); });
  return answered.get_future().get();
}

int Health(const Options& options) {
  Response response;
  const grpc::Status status = Check(options, response);
  if (!status.ok()) return Report(status, options);
  const bool serving = response.value() == kServing;
  const char* word = serving ? "serving" : "not serving";
  if (options.output == Output::kJson) {
    fmt::print("{{\n \"status\": \"{}\"\n}}\n", serving ? "SERVING" : "NOT_SERVING");
  } else {
    fmt::print("{}\n", word);
  }
  if (!serving)
    fmt::print(stderr,
               "phubctl: {} does not serve: it is draining, or its control plane does not answer\n",
               options.endpoint);
  return serving ? kOk : kFailure;
}

}  // namespace

void AddHealth(Subcommand parent, const Options& options, Command& command) {
  const Subcommand health = parent.AddSubcommand("health", "Check that the daemon is serving");
  health.SetFooter(
      "Exit codes: 0 serving, 1 reached but not serving (draining), 5 not reached.\n"
      "\nExample:\n  phubctl health || echo 'no phubd here'");
  health.OnNamed([&] { command = [&] { return Health(options); }; });
}

}  // namespace phub::client::cli
