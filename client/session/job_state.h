// A worker's place in one job: its control channel, its engine, its keys, and the verdict when the
// job ends. Behind phub::Job, and shared by every Key and Handle, so that those can outlive it.
//
// Threads. Callers; the engine's thread (EngineListener); the channel's threads
// (ControlChannel::Observer); and one of its own, which sends heartbeats and watches for silence,
// and is busy with nothing else.
//
// How a job ends. Fail() (a verdict from the daemon, a silent or lost daemon) or Leave() sets the
// verdict, from when on pushes are refused, and stops the engine. When the engine says that no lane
// is left, no memory of the caller is touched any more: ended() turns true and everybody wakes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/layout.h"
#include "client/session/control_channel.h"
#include "client/session/endpoint.h"
#include "client/session/engine_thread.h"
#include "client/session/key_state.h"
#include "phub/client.h"

namespace phub::client {

// Versions of the session protocol that this build speaks.
inline constexpr std::uint32_t kProtocolVersionMin = 1;
inline constexpr std::uint32_t kProtocolVersionMax = 1;

struct JobSettings {
  Endpoint daemon;  // where the control plane was reached
  std::string tenant = {};
  std::chrono::milliseconds call_timeout{};
  JobOptions options;
};

class JobState final : public EngineListener,
                       public ControlChannel::Observer,
                       public std::enable_shared_from_this<JobState> {
 public:
  // Joins, opens the lanes, and starts the threads. On an error whatever was begun is undone.
  static Result<std::shared_ptr<JobState>> Join(JobSettings settings,
                                                std::unique_ptr<ControlChannel> channel);
  ~JobState() override;  // after Leave(), or after Join() failed

  const std::string& name() const { return settings_.options.job; }
  std::uint32_t rank() const { return settings_.options.rank; }
  std::uint32_t world_size() const { return settings_.options.world_size; }
  bool created() const { return joined_.created(); }

  Status status() const;            // OK, or the verdict
  std::string verdict_key() const;  // the key that the verdict names, if it names one
  bool ended() const { return ended_.load(std::memory_order_seq_cst); }
  void Submit(const Command& command) { engine_->Submit(command); }

  Result<std::vector<std::shared_ptr<KeyState>>> AddKeys(std::span<const KeySpec> specs);
  Status Barrier();
  Status Leave();

  // EngineListener, on the engine's thread.
  void OnLaneClosed(const LaneClosed& closed) override;
  void OnStopped() override;
  // ControlChannel::Observer, on the channel's threads.
  void OnEvent(const v1::SessionEvent& event) override;
  void OnAttendClosed(const absl::Status& status) override;

 private:
  JobState(JobSettings settings, std::unique_ptr<ControlChannel> channel);

  template <typename Response, typename Start>
  absl::StatusOr<Response> Await(Start start);
  Status JoinDaemon();
  Status CheckJoined() const;
  void StartThreads();
  Status OpenLanes();
  Result<std::vector<KeyDefinition>> CheckSpecs(std::span<const KeySpec> specs) const;
  v1::AddKeysRequest MakeRequest(const std::vector<KeyDefinition>& keys,
                                 std::span<const KeySpec> specs) const;
  Result<std::vector<std::shared_ptr<KeyState>>> Enter(std::vector<KeyDefinition> definitions,
                                                       const v1::AddKeysResponse& response);
  Status Drain();
  absl::Status LeaveDaemon();
  void Shutdown(Status verdict);
  // The first verdict stands. Stops the engine. Not on the engine's thread.
  void Fail(Status verdict, std::string key = {});
  void Watch();
  DurationNs CheckLiveness(TimeNs now);  // how long nothing needs to be looked at
  Status FromCall(const char* call, const absl::Status& status) const;
  DurationNs call_timeout_ns() const;

  const JobSettings settings_;
  const SystemClock clock_;
  const std::unique_ptr<ControlChannel> channel_;
  v1::JoinResponse joined_;  // fixed once joined
  std::unique_ptr<LaneLayout> layout_;
  std::unique_ptr<EngineThread> engine_;
  std::vector<std::unique_ptr<transport::Connection>> connections_;  // [lane]

  std::mutex calls_mutex_;  // one AddKeys or Leave at a time
  std::uint32_t next_batch_ = 0;
  std::vector<std::unique_ptr<KeyBatch>> batches_;
  std::atomic<std::uint64_t> next_barrier_{0};
  bool left_ = false;
  Status leave_status_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<KeyState>> keys_;
  Status verdict_;
  std::string verdict_key_;
  std::atomic<bool> failed_{false};  // verdict_ is set
  std::atomic<bool> ended_{false};
  std::atomic<bool> leaving_{false};  // the daemon may end things now
  bool quit_ = false;                 // for the watching thread
  TimeNs lane_lost_at_ = 0;           // 0: no lane is lost
  Status lane_lost_;
  std::atomic<TimeNs> last_heard_{0};  // of the daemon
  std::thread watcher_;
};

// Starts a call and waits for its answer; the job's end answers too.
template <typename Response, typename Start>
absl::StatusOr<Response> JobState::Await(Start start) {
  auto answer = std::make_shared<std::optional<absl::StatusOr<Response>>>();
  start([this, answer](absl::StatusOr<Response> response) {
    const std::lock_guard lock(mutex_);
    *answer = std::move(response);
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return answer->has_value() || ended(); });
  if (!answer->has_value()) return absl::AbortedError("the job ended");
  return *std::move(*answer);
}

}  // namespace phub::client
