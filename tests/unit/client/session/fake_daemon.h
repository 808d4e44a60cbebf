// A daemon for one worker, in the test's process. Its control plane is called directly (see
// direct_channel.h) or over gRPC (grpc_fake_daemon.h). Its lanes over real TCP on loopback answer
// every gradient with itself (the sum of one rank), and messages without payload with elements of
// kStored. Tests can make it hold its replies, stop responding, give verdicts, violate the
// protocol, forget its session or die. Several fake daemons make a rack (fake_rack.h).
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
#include "absl/status/statusor.h"
#include "client/layout.h"
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
  DurationNs nonce_lifetime = 30 * kSecond;  // as announced; its nonces never expire
  std::uint32_t position = 0;
  std::vector<std::uint32_t> rack_cores = {};  // for every daemon of the rack; empty: it is alone
  std::string shared_memory_name = {};  // the name that it offers; it belongs to another process
  bool collective = false;              // it supports collective keys, and RemoveKeys
  bool movements = false;               // it has the first of them only
  transport::LaneKind* other_lanes = nullptr;  // other lanes of its data port in addition to tcp
};

class FakeDaemon final : public transport::LaneGate {
 public:
  explicit FakeDaemon(const FakeDaemonOptions& options = {});
  ~FakeDaemon() override;

  // The daemon's name in a worker's messages; lanes are dialled at its host.
  std::string name() const { return "127.0.0.1:" + std::to_string(7700 + options_.position); }
  static constexpr const char* kName = "127.0.0.1:7700";  // the name of a daemon that is alone
  static constexpr float kStored = 42.0f;
  static constexpr const char* kBootId = "boot";  // the boot id of the host of daemon and workers
  static constexpr std::uint64_t kIncarnation = 0x1122334455667788;

  // Replies wait until they are released.
  void HoldReplies(bool hold) { hold_replies_ = hold; }
  void HoldBarrier(bool hold) { hold_barrier_ = hold; }
  // Without: nothing comes from it, neither over the stream nor over lanes.
  void AnswerHeartbeats(bool answer) { answer_heartbeats_ = lanes_live_ = answer; }
  // Control answers no heartbeats, but the lanes show that the daemon is alive.
  void StickControl() { answer_heartbeats_ = false; }
  void RefuseJoin(absl::Status status) { join_refusal_ = std::move(status); }
  void RefuseCommit(absl::Status status) { commit_refusal_ = std::move(status); }
  void RefuseKeys(absl::Status status) { keys_refusal_ = std::move(status); }
  void HoldRemoval(bool hold) { hold_removal_ = hold; }
  int removals_held() const { return removals_held_; }  // calls that wait or have waited
  void RefuseRemoval(absl::Status status) { removal_refusal_ = std::move(status); }
  void RefuseOpenLanes(absl::Status status);  // OK: refuses no more
  // Calls do not reach it and fail with UNAVAILABLE; streams are not affected.
  void HideCalls(bool hidden) { calls_hidden_ = hidden; }
  bool calls_hidden() const { return calls_hidden_; }
  // The next calls are executed, but their callers get UNAVAILABLE.
  void LoseAnswers(int count) { answers_to_lose_ = count; }
  bool LosesAnswer() { return answers_to_lose_ > 0 && answers_to_lose_-- > 0; }
  // It has ended the job with this text, which it answers to a Leave with a verdict.
  void RecordVerdict(const std::string& text) {
    const std::lock_guard lock(mutex_);
    recorded_verdict_ = text;
  }
  void StallLeave(std::chrono::milliseconds time) { leave_stall_ = time; }
  void StallJoin(std::chrono::milliseconds time) { join_stall_ = time; }
  // Joins wait until the client has asked for the reason, which is this one.
  void DelayJoin(const std::string& reason) { join_reason_ = reason; }
  std::string WhyJoinWaits(const std::string& job) {
    if (!job.empty()) job_asked_for_ = true;
    return job.empty() ? "" : join_reason_;
  }
  void AwaitQuestion() const {
    while (!join_reason_.empty() && !job_asked_for_)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void RefuseLanes() { refuse_lanes_ = true; }
  void PlaceDifferently() { place_differently_ = true; }
  // This rank replaces one that died, and these are the versions of its keys.
  void Resume(bool resumed, v1::GetVersionsResponse versions);
  void HaveLoaded(absl::StatusOr<v1::LoadedState> loaded);
  // The next reply names another iteration than was pushed.
  void BreakNextReply() { break_next_reply_ = true; }
  void CloseLanes() { close_lanes_ = true; }
  void CloseOneLane() { close_one_lane_ = true; }
  void GiveVerdict(const v1::Fault& fault);
  void Say(const v1::SessionEvent& event);
  // The stream ends with this status. The session still exists, unless it is forgotten.
  void BreakStream(const absl::Status& status);
  // New streams end at once with this status. OK: they are served.
  void RefuseStreams(absl::Status status);
  void ForgetSession() { forgotten_ = true; }
  void CountReconnect() { ++reconnect_count_; }
  // Like a process that is killed: control and lanes disappear without a message.
  void Die();

  int left_count() const { return left_count_; }
  int committed_count() const { return committed_count_; }
  int refused_streams() const { return refused_streams_; }
  int attended_count() const { return attended_count_; }
  int reconnect_count() const { return reconnect_count_; }
  int lane_count() const { return lane_count_; }  // lanes ever opened
  int gradient_count() const { return gradient_count_; }
  std::vector<wire::MessageHeader> messages() const;           // gradients and pulls
  std::vector<std::uint64_t> barriers() const;                 // their numbers
  std::string last_verdict() const;                            // the verdict in Leave
  bool said_run_is_over() const { return said_run_is_over_; }  // in the same call
  std::vector<v1::LoadStateRequest> load_requests() const;
  std::vector<v1::ReportDumpRequest> dump_reports() const {
    const std::lock_guard lock(mutex_);
    return dump_reports_;
  }
  v1::JoinRequest join_request() const;
  std::vector<v1::AddKeysRequest> add_keys_requests() const;
  std::vector<wire::HyperParameters> records() const;
  std::vector<wire::Nonce> nonces() const;  // from the lanes' hellos

  // The control plane's calls. Any thread.
  absl::Status HandleGetRack(v1::Rack& response);
  absl::Status HandleJoin(const v1::JoinRequest& request, v1::JoinResponse& response);
  absl::Status HandleCommit();
  absl::Status HandleAddKeys(const v1::AddKeysRequest& request, v1::AddKeysResponse& response);
  absl::Status HandleRemoveKeys(const v1::RemoveKeysRequest& request,
                                const std::function<bool()>& cancelled);
  absl::Status HandleOpenLanes(const v1::OpenLanesRequest& request,
                               v1::OpenLanesResponse& response);
  absl::Status HandleBarrier(const v1::BarrierRequest& request,
                             const std::function<bool()>& cancelled);
  absl::Status HandleLeave(const v1::LeaveRequest& request);
  absl::Status HandleGetVersions(v1::GetVersionsResponse& response);
  absl::Status HandleLoadState(const v1::LoadStateRequest& request);
  absl::Status HandleGetLoadedState(v1::LoadedState& response);
  absl::Status HandleReportDump(const v1::ReportDumpRequest& request) {
    const std::lock_guard lock(mutex_);
    dump_reports_.push_back(request);
    return absl::OkStatus();
  }
  void HandleHeartbeat(const v1::Heartbeat& heartbeat);
  // The single stream: both functions are called under a lock, never after StreamClosed().
  absl::Status StreamOpened(std::function<void(const v1::SessionEvent&)> write,
                            std::function<void(const absl::Status&)> end);
  void StreamClosed();

 private:
  struct Lane;

  wire::LaneRefusal Admit(const wire::LaneHello& hello, std::string_view) override;
  void Attach(const wire::LaneHello& hello, std::unique_ptr<transport::Connection> connection,
              std::string) override;

  std::uint32_t first_bin() const;
  void ServeLanes();
  void Take(const transport::Completion& completion);
  void Answer();

  const FakeDaemonOptions options_;
  const SystemClock clock_;
  std::atomic<bool> hold_replies_{false};
  std::atomic<bool> hold_barrier_{false};
  std::atomic<bool> hold_removal_{false};
  std::atomic<int> removals_held_{0};
  std::atomic<bool> answer_heartbeats_{true};
  static constexpr DurationNs kKeepAliveInterval = 5 * kMillisecond;
  std::atomic<bool> lanes_live_{true};  // sends keep-alives
  TimeNs next_keep_alive_ = 0;
  std::atomic<bool> refuse_lanes_{false};
  std::atomic<bool> break_next_reply_{false};
  std::atomic<bool> close_lanes_{false};
  std::atomic<bool> close_one_lane_{false};
  std::atomic<bool> place_differently_{false};
  std::atomic<bool> forgotten_{false};
  std::atomic<bool> quit_{false};
  std::atomic<bool> calls_hidden_{false};
  std::atomic<int> answers_to_lose_{0};
  std::atomic<int> left_count_{0};
  std::atomic<int> committed_count_{0};
  std::atomic<int> attended_count_{0};
  std::atomic<int> refused_streams_{0};
  std::atomic<int> reconnect_count_{0};
  std::atomic<int> lane_count_{0};
  std::atomic<int> gradient_count_{0};
  absl::Status join_refusal_;
  absl::Status commit_refusal_;
  absl::Status keys_refusal_;
  absl::Status removal_refusal_;
  std::atomic<std::chrono::milliseconds> join_stall_{std::chrono::milliseconds(0)};
  std::atomic<std::chrono::milliseconds> leave_stall_{std::chrono::milliseconds(0)};

  mutable std::mutex mutex_;
  v1::JoinRequest join_request_;
  std::vector<v1::AddKeysRequest> add_keys_requests_;
  std::vector<v1::AddKeysResponse> batches_;     // its answers, by batch
  std::vector<std::vector<KeyLayout>> layouts_;  // by batch
  std::uint32_t removals_ = 0;
  std::vector<wire::HyperParameters> records_;
  std::vector<wire::Nonce> nonces_;
  unsigned char grant_count_ = 0;
  std::vector<wire::MessageHeader> messages_;
  std::vector<std::uint64_t> barriers_;
  std::vector<v1::LoadStateRequest> load_requests_;
  std::vector<v1::ReportDumpRequest> dump_reports_;
  std::string last_verdict_;
  std::string recorded_verdict_;
  std::atomic<bool> said_run_is_over_{false};
  absl::Status lanes_refusal_;
  absl::Status streams_refusal_;
  bool resumed_ = false;
  v1::GetVersionsResponse versions_;
  std::string join_reason_;  // set before the first call
  std::atomic<bool> job_asked_for_ = false;
  absl::StatusOr<v1::LoadedState> loaded_ = absl::NotFoundError("nothing was loaded");
  LaneLayout layout_;
  std::vector<std::vector<std::uint32_t>> chunk_bytes_;  // by core and chunk
  std::function<void(const v1::SessionEvent&)> write_event_;
  std::function<void(const absl::Status&)> end_stream_;
  std::condition_variable attended_;  // write_event_ was set

  // Used by the lanes' thread.
  transport::TcpTransport transport_;
  std::unique_ptr<transport::TcpListener> listener_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  struct Reply {
    transport::ConnectionId connection;
    wire::MessageHeader header;
    std::vector<std::byte> payload;
  };
  std::deque<Reply> waiting_;
  std::deque<Reply> sent_;  // payloads are lent, so they are kept to the end
  std::thread lanes_thread_;
};

}  // namespace phub::client
