// One core loop, several jobs, and workers that push again as soon as they are answered, in virtual
// time. A model of costs (WorkClock) advances the clock by the loop's work, so "busy" is exact and
// every run is identical. The loop, its queues and its jobs are product code; the network is
// infinitely fast.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "server/core/core_loop.h"
#include "server/core/job_shard.h"

namespace phub::server {

// Costs of work, roughly as on one core of a server.
struct WorkModel {
  DurationNs run_ns = 500;           // one RunOnce, including its polls
  DurationNs message_ns = 250;       // receiving one message
  double ns_per_payload_byte = 0.1;  // received payload
  DurationNs reply_ns = 300;         // one reply
  double ns_per_reply_byte = 0.1;    // summed, applied and sent
  DurationNs command_ns = 2'000;     // adding or ending a job, keys, or a lane
  DurationNs lane_closed_ns = 2'000;
};

class FairTransport;

// Now() is the work done so far plus the time slept.
class WorkClock final : public Clock {
 public:
  explicit WorkClock(const WorkModel& model) : model_(model) {}
  void Watch(const CoreCounters& counters, const FairTransport& transport) {
    counters_ = &counters;
    transport_ = &transport;
  }
  void Sleep(DurationNs duration) { slept_ += duration; }
  TimeNs Now() const override;

 private:
  const WorkModel model_;
  const CoreCounters* counters_ = nullptr;
  const FairTransport* transport_ = nullptr;
  DurationNs slept_ = 1;
};

// A job whose ranks push all chunks of an iteration as far as their slots allow. The next iteration
// follows `think_ns` after the whole previous one was answered.
struct FairJobOptions {
  std::uint32_t tenant = 1;
  TenantShare share = {};
  std::uint32_t ranks = 2;
  std::uint32_t chunks = 16;
  std::uint32_t chunk_bytes = 64 * 1024;
  std::uint32_t slots = 16;
  DurationNs think_ns = 0;
  bool repeats = false;  // all ranks except one push their first gradient repeatedly
};

class FairJob {
 public:
  FairJob(CoreLoop& loop, FairTransport& transport, const FairJobOptions& options,
          std::uint64_t incarnation);
  ~FairJob();
  FairJob(const FairJob&) = delete;
  FairJob& operator=(const FairJob&) = delete;

  void OnMessage(std::uint32_t rank, const wire::MessageHeader& header);
  // Pushes as much as is allowed now.
  void Push(TimeNs now);
  TimeNs next_push() const { return next_push_; }  // the time when its pause ends
  // Every rank loses its lane and opens another one.
  void Reconnect();
  void SetShare(const TenantShare& share);
  // Ends the job. The loop removes it later.
  void End();
  bool over() const { return over_; }
  JobShard& shard() { return *shard_; }

  const std::vector<DurationNs>& exchange_times() const { return exchange_times_; }
  std::uint64_t bytes_pushed() const { return bytes_pushed_; }
  void ForgetMeasurements();

 private:
  struct Worker {
    transport::ConnectionId lane;
    std::vector<std::byte> staging;
    std::vector<std::uint32_t> free_slots;
    std::vector<std::uint32_t> slot_of;  // by chunk; UINT32_MAX: no slot
    std::vector<bool> is_answered;       // by chunk, in this iteration
    std::uint32_t next_chunk = 0;
  };
  void AttachLane(std::uint32_t rank);
  void Order(const Command& command);
  void PushOne(std::uint32_t rank);
  void Send(std::uint32_t rank, std::uint32_t chunk);

  CoreLoop& loop_;
  FairTransport& transport_;
  const FairJobOptions options_;
  ShardConfig config_;
  std::vector<std::byte> parameters_;
  std::unique_ptr<JobShard> shard_;
  std::unique_ptr<KeyBatch> batch_;
  std::vector<Worker> workers_;
  std::uint64_t iteration_ = 1;
  std::uint32_t unanswered_ = 0;
  bool whole_ = false;
  TimeNs begun_at_ = 0;
  TimeNs next_push_ = 0;
  bool over_ = false;
  std::uint64_t bytes_pushed_ = 0;
  std::vector<DurationNs> exchange_times_;
};

class FairCluster {
 public:
  explicit FairCluster(const WorkModel& model = {});
  ~FairCluster();

  FairJob& Add(const FairJobOptions& options);
  // A neighbour's additional activity, once per run of the loop.
  std::function<void()> on_run;
  void RunFor(DurationNs duration);
  void ForgetMeasurements();
  TimeNs now() const { return clock_.Now(); }
  CoreLoop& loop() { return *loop_; }
  FairTransport& transport() { return *transport_; }

 private:
  void TakeEvents();

  WorkClock clock_;
  std::unique_ptr<FairTransport> transport_;
  std::vector<transport::Transport*> transports_;
  std::unique_ptr<CoreLoop> loop_;
  std::vector<std::unique_ptr<FairJob>> jobs_;
  std::uint64_t next_incarnation_ = 1;
  std::uint64_t runs_ = 0;
};

// The smallest value such that `part` of all values are not above it.
DurationNs Percentile(std::vector<DurationNs> values, double part);

}  // namespace phub::server
