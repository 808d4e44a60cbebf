#include "client/session/grpc_connector.h"

#include <fmt/core.h>

#include <string>
#include <utility>

#include "client/session/grpc_control_channel.h"

namespace phub::client {
namespace {

// How soon a daemon that was just started is found.
constexpr int kReconnectMillisecondsMin = 50;
constexpr int kReconnectMillisecondsMax = 1000;
// A batch of many keys has one number per chunk in its answer.
constexpr int kMessageBytesMax = 64 * 1024 * 1024;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // a daemon of the rack is never behind one
  // A connection of its own, so that a new channel is a new connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMin);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMin);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMillisecondsMax);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

Result<std::unique_ptr<ControlChannel>> GrpcConnector::Connect(const Endpoint& daemon) {
  const std::string address = daemon.ToString();
  std::shared_ptr<grpc::Channel> first = MakeChannel(address);
  if (!first->WaitForConnected(std::chrono::system_clock::now() + connect_timeout_))
    return Status(StatusCode::kUnavailable,
                  fmt::format("no phub daemon answered at {} within {} ms; is phubd running there?",
                              address, connect_timeout_.count()));
  return std::unique_ptr<ControlChannel>(std::make_unique<GrpcControlChannel>(
      [address, first]() mutable {
        return first != nullptr ? std::exchange(first, nullptr) : MakeChannel(address);
      }));
}

StateStubs GrpcConnector::MakeStateStubs(const Endpoint& daemon) {
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(daemon.ToString());
  return {.admin = v1::Admin::NewStub(channel), .session = v1::Session::NewStub(channel)};
}

}  // namespace phub::client
