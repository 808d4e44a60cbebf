// A daemon for one worker, in the test's process: a control plane that is called directly (or over
// gRPC, see grpc_fake_daemon.h), and lanes over real TCP on loopback that answer every gradient
// with itself (what one rank's sum is). Tests make it hold its replies, fall silent, give verdicts,
// break the protocol or die.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "client/session/control_channel.h"
#include "client/session/job_state.h"
#include "common/base/clock.h"
#include "common/transport/tcp/lane_gate.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_transport.h"
#include "phub/client.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

struct FakeDaemonOptions {
  std::uint32_t core_count = 2;
  std::uint32_t chunk_bytes = 256;
  std::uint32_t slots_per_lane = 4;
  DurationNs liveness_timeout = 2 * kSecond;
};

class FakeDaemon final : public transport::LaneGate {
 public:
  explicit FakeDaemon(const FakeDaemonOptions& options = {});
  ~FakeDaemon() override;

  // What a worker's messages call this daemon; lanes are dialled at its host.
  static constexpr const char* kName = "127.0.0.1:7700";
  // Joins through a channel that calls this daemon directly.
  Result<Job> Join(JobOptions options, std::chrono::milliseconds call_timeout);

  // Replies wait until they are let go.
  void HoldReplies(bool hold) { hold_replies_ = hold; }
  void HoldBarrier(bool hold) { hold_barrier_ = hold; }
  void AnswerHeartbeats(bool answer) { answer_heartbeats_ = answer; }
  void RefuseJoin(absl::Status status) { join_refusal_ = std::move(status); }
  void StallJoin(std::chrono::milliseconds time) { join_stall_ = time; }
  void RefuseLanes() { refuse_lanes_ = true; }
  // The next reply says another iteration than was asked for.
  void BreakNextReply() { break_next_reply_ = true; }
  void CloseLanes() { close_lanes_ = true; }
  void GiveVerdict(const v1::Fault& fault);
  // As a process that is killed: control and lanes go away without a word.
  void Die();

  int left_count() const { return left_count_; }
  int gradient_count() const { return gradient_count_; }
  v1::JoinRequest join_request() const;
  std::vector<v1::AddKeysRequest> add_keys_requests() const;
  std::vector<wire::HyperParameters> records() const;

  // The control plane, for whoever carries the calls. Any thread.
  absl::Status HandleJoin(const v1::JoinRequest& request, v1::JoinResponse& response);
  absl::Status HandleAddKeys(const v1::AddKeysRequest& request, v1::AddKeysResponse& response);
  absl::Status HandleOpenLanes(v1::OpenLanesResponse& response);
  absl::Status HandleBarrier(const std::function<bool()>& cancelled);
  absl::Status HandleLeave();
  void HandleHeartbeat(const v1::Heartbeat& heartbeat);
  // The one stream: `write` is called under a lock, never after StreamClosed().
  void StreamOpened(std::function<void(const v1::SessionEvent&)> write, std::function<void()> die);
  void StreamClosed();

 private:
  struct Lane;

  wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view) override;
  void Attach(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
              std::string) override;

  void ServeLanes();
  void Take(const transport::Completion& completion);
  void Answer();

  const FakeDaemonOptions options_;
  const SystemClock clock_;
  std::atomic<bool> hold_replies_{false};
  std::atomic<bool> hold_barrier_{false};
  std::atomic<bool> answer_heartbeats_{true};
  std::atomic<bool> refuse_lanes_{false};
  std::atomic<bool> break_next_reply_{false};
  std::atomic<bool> close_lanes_{false};
  std::atomic<bool> quit_{false};
  std::atomic<int> left_count_{0};
  std::atomic<int> gradient_count_{0};
  absl::Status join_refusal_;
  std::atomic<std::chrono::milliseconds> join_stall_{std::chrono::milliseconds(0)};

  mutable std::mutex mutex_;
  v1::JoinRequest join_request_;
  std::vector<v1::AddKeysRequest> add_keys_requests_;
  std::vector<wire::HyperParameters> records_;
  std::uint32_t key_count_ = 0;
  std::function<void(const v1::SessionEvent&)> write_event_;
  std::function<void()> die_;
  std::condition_variable attended_;  // write_event_ was set

  // The lanes' thread.
  transport::TcpTransport transport_;
  std::unique_ptr<transport::TcpListener> listener_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  struct Reply {
    transport::ConnectionId connection;
    wire::MessageHeader header;
    std::vector<std::byte> payload;
  };
  std::deque<Reply> waiting_;
  std::deque<Reply> sent_;  // payloads are lent; kept to the end
  std::thread lanes_thread_;
};

}  // namespace phub::client
