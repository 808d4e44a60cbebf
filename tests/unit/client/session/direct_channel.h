// A ControlChannel that calls a fake daemon in the same process. Calls run on their own threads, as
// over gRPC.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "client/session/connector.h"
#include "client/session/control_channel.h"

namespace phub::client {

class FakeDaemon;

class DirectChannel final : public ChannelOf<DirectChannel> {
 public:
  explicit DirectChannel(FakeDaemon& daemon);
  ~DirectChannel() override { Close(); }

  void Attend(Observer& observer) override;
  void SendHeartbeat(const v1::Heartbeat& heartbeat) override;
  void Reconnect() override;
  void Close() override;

  // The interface that ChannelOf calls.
  template <typename Rpc>
  void Carry(const typename Rpc::Request& request, DurationNs timeout,
             Done<typename Rpc::Response> done);

 private:
  void JoinCalls();

  FakeDaemon& daemon_;
  std::atomic<bool> closed_{false};
  std::atomic<std::uint64_t> generation_{0};  // the connection's generation
  std::mutex mutex_;
  std::vector<std::thread> calls_;
};

}  // namespace phub::client
