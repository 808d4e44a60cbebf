// One core loop, several jobs, and workers who push again as soon as they are answered, in virtual
// time: the clock is what the loop's work takes by a model of costs (WorkClock), so that "busy" is
// exact and every run is the same. The loop, its queues and its jobs are the product's; the network
// is as fast as one likes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "server/core/core_loop.h"
#include "server/core/job_shard.h"

namespace phub::server {

// What work takes: roughly what it does on one core of a server.
struct WorkModel {
  DurationNs run_ns = 500;           // one RunOnce, with its polls
  DurationNs message_ns = 250;       // one message taken in
  double ns_per_payload_byte = 0.1;  // received
  DurationNs reply_ns = 300;         // one reply
  double ns_per_reply_byte = 0.1;    // summed, applied, sent
  DurationNs command_ns = 2'000;     // a job, keys, or a lane, added or ended
  DurationNs lane_closed_ns = 2'000;
};

class FairTransport;

// Now() is what has been done so far, and what was slept.
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

// A job whose ranks push all chunks of an iteration as far as their slots allow, and the next
// iteration `think_ns` after the whole of it was answered.
struct FairJobOptions {
  std::uint32_t tenant = 1;
  TenantShare share = {};
  std::uint32_t ranks = 2;
  std::uint32_t chunks = 16;
  std::uint32_t chunk_bytes = 64 * 1024;
  std::uint32_t slots = 16;
  DurationNs think_ns = 0;
  bool repeats = false;  // all ranks but one push their first gradient, again and again
};

class FairJob {
 public:
  FairJob(CoreLoop& loop, FairTransport& transport, const FairJobOptions& options,
          std::uint64_t incarnation);
  ~FairJob();
  FairJob(const FairJob&) = delete;
  FairJob& operator=(const FairJob&) = delete;

  void OnMessage(std::uint32_t rank, const wire::MessageHeader& header);
  // Pushes whatever may be pushed now.
  void Push(TimeNs now);
  TimeNs next_push() const { return next_push_; }  // when it thinks no longer
  // Every rank loses its lane and opens another one.
  void Reconnect();
  void SetShare(const TenantShare& share);
  // It is gone once the loop has let go of it.
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
    std::vector<std::uint32_t> slot_of;  // [chunk]; none: UINT32_MAX
    std::vector<bool> is_answered;       // [chunk], in this iteration
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
  // Whatever a neighbour does beside pushing, once per run of the loop.
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
};

// The smallest value that so large a part of them is not above.
DurationNs Percentile(std::vector<DurationNs> values, double part);

}  // namespace phub::server
