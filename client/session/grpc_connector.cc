#include "client/session/grpc_connector.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "client/session/control_diagnosis.h"
#include "client/session/grpc_control_channel.h"
#include "common/base/log.h"
#include "common/base/status_text.h"

namespace phub::client {
namespace {

// Delay until a daemon that was just started is found.
constexpr int kReconnectMillisecondsMin = 50;
constexpr DurationNs kRetryAfter = 50 * kMillisecond;
// Limit of one connection attempt, including TLS: gRPC has no separate setting for it.
constexpr int kConnectMillisecondsMax = 1000;
constexpr int kReconnectMillisecondsMax = 1000;
// An attempt that the deadline ended is diagnosed all the same: gRPC reports a refused connection
// late if the machine is busy.
constexpr DurationNs kDiagnosisAtLeast = 100 * kMillisecond;
// The response to a large batch of keys has one number per chunk.
constexpr int kMessageBytesMax = 64 * 1024 * 1024;

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  // Do not share connections between channels: a new channel must open a new connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMin);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMillisecondsMax);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMax);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  return arguments;
}

// The credential files were valid when the session started but may be gone by now. The channel then
// has no identity, and the daemon's error says what is missing. TLS stays on if it was on.
std::shared_ptr<grpc::Channel> MakeLaterChannel(const std::string& address,
                                                const Credentials& credentials) {
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel =
      MakeChannel(address, credentials, Arguments());
  if (channel.ok()) return *std::move(channel);
  LogWarning("event=credentials_unusable error=\"{}\"", MessageOf(channel.status()));
  return grpc::CreateCustomChannel(
      address, credentials.tls() ? grpc::SslCredentials({}) : grpc::InsecureChannelCredentials(),
      Arguments());
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> GrpcConnector::ConnectOnce(
    const std::string& address, const net::Deadline& deadline, bool& permanent) const {
  absl::StatusOr<std::shared_ptr<grpc::Channel>> made =
      MakeChannel(address, credentials_, Arguments());
  // A name server that does not answer may do so later.
  permanent = !made.ok() && !absl::IsUnavailable(made.status());
  if (!made.ok()) return made;
  const auto until =
      std::chrono::system_clock::now() +
      std::chrono::nanoseconds(std::max<DurationNs>(0, deadline.at - deadline.clock.Now()));
  for (grpc_connectivity_state state = (*made)->GetState(/*try_to_connect=*/true);
       state != GRPC_CHANNEL_READY; state = (*made)->GetState(true)) {
    const bool failed = state == GRPC_CHANNEL_TRANSIENT_FAILURE;
    if (!failed && (*made)->WaitForStateChange(state, until)) continue;
    const net::Deadline enough{deadline.clock,
                               std::max(deadline.at, deadline.clock.Now() + kDiagnosisAtLeast),
                               deadline.timeout};
    const Diagnosis diagnosis = DiagnoseControlPort(address, credentials_, enough);
    permanent = diagnosis.permanent;
    if (!diagnosis.status.ok()) return diagnosis.status;
    if (!failed || !(*made)->WaitForStateChange(state, until)) {
      return absl::UnavailableError(fmt::format("connected to {}, but gRPC did not", address));
    }
  }
  return made;
}

Result<std::unique_ptr<ControlChannel>> GrpcConnector::Connect(const Endpoint& daemon) {
  const std::string address = daemon.ToString();
  if (const absl::Status room = CheckRoomForGrpc(); !room.ok())
    return Status(StatusCode::kResourceExhausted, std::string(room.message()));
  const SystemClock clock;
  const DurationNs timeout = std::chrono::nanoseconds(connect_timeout_).count();
  const net::Deadline deadline{clock, clock.Now() + timeout, timeout};
  bool permanent = false;
  absl::StatusOr<std::shared_ptr<grpc::Channel>> connected =
      ConnectOnce(address, deadline, permanent);
  // The daemon was perhaps just started.
  while (!connected.ok() && !permanent && clock.Now() + kRetryAfter < deadline.at) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kRetryAfter));
    connected = ConnectOnce(address, deadline, permanent);
  }
  if (!connected.ok()) {
    const absl::Status& status = connected.status();
    const bool waited = absl::IsUnavailable(status) && !permanent;
    return Status(
        absl::IsNotFound(status) ? StatusCode::kUnavailable
                                 : static_cast<StatusCode>(status.code()),
        waited ? fmt::format("{} (tried for {} ms)", MessageOf(status), connect_timeout_.count())
               : std::string(MessageOf(status)));
  }
  return std::unique_ptr<ControlChannel>(std::make_unique<GrpcControlChannel>(
      [address, credentials = credentials_, first = *std::move(connected)]() mutable {
        return first != nullptr ? std::exchange(first, nullptr)
                                : MakeLaterChannel(address, credentials);
      }));
}

CheckpointStubs GrpcConnector::MakeCheckpointStubs(const Endpoint& daemon) {
  const std::shared_ptr<grpc::Channel> channel = MakeLaterChannel(daemon.ToString(), credentials_);
  return {.admin = v1::Admin::NewStub(channel), .session = v1::Session::NewStub(channel)};
}

}  // namespace phub::client
