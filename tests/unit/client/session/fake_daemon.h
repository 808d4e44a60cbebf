// A daemon for one worker, in the test's process: the Session service over real gRPC, and lanes
// over real TCP on loopback that answer every gradient with itself (what one rank's sum is). Tests
// make it hold its replies, fall silent, give verdicts, break the protocol or die.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/transport/tcp/lane_gate.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_transport.h"
#include "phub/v1/session.grpc.pb.h"

namespace phub::client {

struct FakeDaemonOptions {
  std::uint32_t core_count = 2;
  std::uint32_t chunk_bytes = 256;
  std::uint32_t slots_per_lane = 4;
  DurationNs liveness_timeout = 2 * kSecond;
};

class FakeDaemon final : public v1::Session::Service, public transport::LaneGate {
 public:
  explicit FakeDaemon(const FakeDaemonOptions& options = {});
  ~FakeDaemon() override;

  std::string endpoint() const { return "127.0.0.1:" + std::to_string(control_port_); }

  // Replies wait until they are let go.
  void HoldReplies(bool hold) { hold_replies_ = hold; }
  void HoldBarrier(bool hold) { hold_barrier_ = hold; }
  void AnswerHeartbeats(bool answer) { answer_heartbeats_ = answer; }
  void RefuseJoin(grpc::Status status) { join_refusal_ = std::move(status); }
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

 private:
  struct Lane;

  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest* request,
                    v1::JoinResponse* response) override;
  grpc::Status AddKeys(grpc::ServerContext*, const v1::AddKeysRequest* request,
                       v1::AddKeysResponse* response) override;
  grpc::Status OpenLanes(grpc::ServerContext*, const v1::OpenLanesRequest*,
                         v1::OpenLanesResponse* response) override;
  grpc::Status Barrier(grpc::ServerContext* context, const v1::BarrierRequest*,
                       v1::BarrierResponse*) override;
  grpc::Status Attend(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::SessionEvent, v1::Heartbeat>* stream) override;
  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest*, v1::LeaveResponse*) override;

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
  grpc::Status join_refusal_;

  mutable std::mutex mutex_;
  v1::JoinRequest join_request_;
  std::vector<v1::AddKeysRequest> add_keys_requests_;
  std::vector<wire::HyperParameters> records_;
  std::uint32_t key_count_ = 0;
  grpc::ServerReaderWriter<v1::SessionEvent, v1::Heartbeat>* stream_ = nullptr;

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

  int control_port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace phub::client
