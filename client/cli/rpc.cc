#include "client/cli/rpc.h"

#include <fmt/format.h>

#include <chrono>
#include <string_view>
#include <utility>

#include "client/session/control_diagnosis.h"
#include "common/base/status_text.h"
#include "common/base/units.h"

namespace phub::client::cli {
namespace {

constexpr std::string_view kScheme = "phub://";
constexpr std::string_view kUnixScheme = "unix:";
constexpr int kDefaultPort = 7700;
constexpr int kAnswerBytesMax = 64 << 20;  // as in the daemon: a description of many keys

constexpr std::uint32_t kJobsPerPage = 32;

}  // namespace

std::string Target(const std::string& endpoint) {
  if (endpoint.starts_with(kUnixScheme)) return endpoint;
  std::string_view rest = endpoint;
  if (rest.substr(0, kScheme.size()) == kScheme) rest.remove_prefix(kScheme.size());
  const std::size_t bracket = rest.rfind(']');  // colons inside "[::1]" do not precede a port
  const std::size_t colon = rest.rfind(':');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  return has_port ? std::string(rest) : fmt::format("{}:{}", rest, kDefaultPort);
}

grpc::Status Connect(const Options& options, std::shared_ptr<grpc::Channel>& channel) {
  if (const absl::Status room = CheckRoomForGrpc(); !room.ok()) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, std::string(MessageOf(room))};
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kAnswerBytesMax);
  absl::StatusOr<std::shared_ptr<grpc::Channel>> made =
      MakeChannel(Target(options.endpoint), options.credentials, std::move(arguments));
  if (!made.ok()) {
    return {static_cast<grpc::StatusCode>(made.status().code()),
            std::string(MessageOf(made.status()))};
  }
  channel = *std::move(made);
  return grpc::Status::OK;
}

void Prepare(grpc::ClientContext& context, const Options& options) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::nanoseconds(options.timeout));
}

grpc::Status CallListJobs(const Options& options, const std::string& tenant,
                          v1::ListJobsResponse& response) {
  v1::ListJobsRequest request;
  request.set_tenant(tenant);
  return CallPages(options, &v1::Admin::Stub::ListJobs, request, kJobsPerPage, response);
}

ExitCode ExitCodeOf(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK: return kOk;
    case grpc::StatusCode::INVALID_ARGUMENT: return kUsage;
    case grpc::StatusCode::NOT_FOUND: return kNotFound;
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED: return kRefused;
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED: return kUnavailable;
    default: return kFailure;
  }
}

// gRPC reports little more than that it could not connect.
std::string CauseOf(const grpc::Status& status, const Options& options) {
  constexpr DurationNs kDiagnosisTimeout = 2 * kSecond;
  const SystemClock clock;
  const std::string target = Target(options.endpoint);
  const Diagnosis diagnosis = DiagnoseControlPort(
      target, options.credentials, {clock, clock.Now() + kDiagnosisTimeout, kDiagnosisTimeout});
  return diagnosis.status.ok()
             ? fmt::format("cannot reach phubd at {}: {}", target, status.error_message())
             : std::string(MessageOf(diagnosis.status));
}

int Report(const grpc::Status& status, const Options& options) {
  const std::string target = Target(options.endpoint);
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      fmt::print(stderr, "phubctl: {}. Select another daemon with --endpoint or PHUB_ENDPOINT\n",
                 CauseOf(status, options));
      break;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      fmt::print(stderr, "phubctl: {} did not answer within {} (--timeout)\n", target,
                 ExactDuration(options.timeout));
      break;
    case grpc::StatusCode::UNIMPLEMENTED:
      fmt::print(stderr,
                 "phubctl: the server at {} does not support this call{}{}. It may be an older "
                 "phubd or another program\n",
                 target, status.error_message().empty() ? "" : ": ", status.error_message());
      break;
    default: fmt::print(stderr, "phubctl: {}\n", status.error_message());
  }
  return ExitCodeOf(status);
}

}  // namespace phub::client::cli
