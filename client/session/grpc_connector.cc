#include "client/session/grpc_connector.h"

#include <fmt/core.h>

#include <string>
#include <utility>

#include "client/session/grpc_control_channel.h"
#include "common/base/log.h"
#include "common/base/status_text.h"

namespace phub::client {
namespace {

// Delay until a daemon that was just started is found.
constexpr int kReconnectMillisecondsMin = 50;
// Limit of one connection attempt, including TLS: gRPC has no separate setting for it.
constexpr int kConnectMillisecondsMax = 1000;
constexpr int kReconnectMillisecondsMax = 1000;
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

Result<std::unique_ptr<ControlChannel>> GrpcConnector::Connect(const Endpoint& daemon) {
  const std::string address = daemon.ToString();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> made =
      MakeChannel(address, credentials_, Arguments());
  if (!made.ok()) {
    return Status(static_cast<StatusCode>(made.status().code()),
                  std::string(MessageOf(made.status())));
  }
  std::shared_ptr<grpc::Channel> first = *std::move(made);
  if (!first->WaitForConnected(std::chrono::system_clock::now() + connect_timeout_))
    return Status(
        StatusCode::kUnavailable,
        fmt::format(
            "cannot connect to a phub daemon at {} within {} ms; check that phubd is running "
            "there and {}",
            address, connect_timeout_.count(),
            credentials_.tls() ? "that its certificate matches ca_file and server_name"
                               : "whether it requires TLS (ca_file)"));
  return std::unique_ptr<ControlChannel>(
      std::make_unique<GrpcControlChannel>([address, credentials = credentials_, first]() mutable {
        return first != nullptr ? std::exchange(first, nullptr)
                                : MakeLaterChannel(address, credentials);
      }));
}

CheckpointStubs GrpcConnector::MakeCheckpointStubs(const Endpoint& daemon) {
  const std::shared_ptr<grpc::Channel> channel = MakeLaterChannel(daemon.ToString(), credentials_);
  return {.admin = v1::Admin::NewStub(channel), .session = v1::Session::NewStub(channel)};
}

}  // namespace phub::client
