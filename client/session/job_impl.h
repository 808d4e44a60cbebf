// A worker's membership in one job: the daemons of its rack, its engine, its keys, and the verdict
// when the job ends. Implements phub::Job. Every Key and Handle shares it, so they can outlive Job.
//
// Parts:
//   rack_calls.h     calls the daemons
//   rack_join.h      joins at every daemon
//   rack_lanes.h     opens lanes
//   rack_watch.h     detects failures and recovers from them where possible
//   rack_batches.h   adds batches of keys
//   rack_leave.h     leaves
//   dump_answers.h   answers daemons that ask what this rank is doing
//   first_verdict.h  agrees with the other ranks on the reason of the job's end
//   engine_thread.h  moves the bytes
// This object owns them and decides how the job ends. Its functions are in job_impl.cc (state,
// ending), job_start.cc (joining), job_keys.cc (adding keys), job_removal.cc (removing keys) and
// job_checkpoint.cc (SaveCheckpoint, LoadCheckpoint).
//
// Threads: callers, the engine's thread (EngineListener), and threads of the watch and of the
// channels (RackWatch::Owner).
//
// Locks. calls_mutex_ serializes calls that change the set of keys or leave; it is held during
// calls to daemons. mutex_ protects keys and verdict; it is never held during a call to another
// object.
//
// How a job ends:
// 1. A verdict (a daemon's, or a silent or lost daemon) is offered to the anchor: first_verdict.h.
// 2. Fail() or Leave() sets the verdict. Pushes are refused from then on. It stops the engine, and
//    sends the verdict to the other daemons of the rack.
// 3. When all lanes are closed, the caller's memory is no longer used: ended() becomes true and all
//    waiting threads wake.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/layout.h"
#include "client/session/connector.h"
#include "client/session/daemon_link.h"
#include "client/session/dump_answers.h"
#include "client/session/endpoint.h"
#include "client/session/engine_thread.h"
#include "client/session/fault_text.h"
#include "client/session/first_verdict.h"
#include "client/session/job_barriers.h"
#include "client/session/job_groups.h"
#include "client/session/key_definition.h"
#include "client/session/key_impl.h"
#include "client/session/key_memory.h"
#include "client/session/key_owner.h"
#include "client/session/lane_ways.h"
#include "client/session/rack_batches.h"
#include "client/session/rack_calls.h"
#include "client/session/rack_join.h"
#include "client/session/rack_lanes.h"
#include "client/session/rack_leave.h"
#include "client/session/rack_watch.h"
#include "client/session/resume_plan.h"
#include "client/session/sum_sockets.h"
#include "client/session/timeline.h"
#include "phub/client.h"

namespace phub::client {

struct JobSettings {
  Endpoint daemon;  // any daemon of the rack: its control plane
  std::string tenant = {};
  std::chrono::milliseconds call_timeout{};
  JobOptions options;
  std::shared_ptr<Connector> connector;
  std::string boot_id = {};  // this host's
  DurationNs join_notice_after = kNoticeAfter;
};

class JobImpl final : public EngineListener,
                      public KeyOwner,
                      public RackWatch::Owner,
                      public std::enable_shared_from_this<JobImpl> {
 public:
  // Joins, opens the lanes, and starts the threads. Undoes everything if it fails.
  // A forked child leaks it (fork.h).
  static Result<std::shared_ptr<JobImpl>> Join(JobSettings settings);
  ~JobImpl() override;  // after Leave(), or after Join() failed

  // KeyOwner.
  const std::string& name() const override { return settings_.options.job; }
  std::uint32_t rank() const override { return settings_.options.rank; }
  bool applies_iterations() const override { return settings_.options.apply == Apply::kIteration; }
  Status status() const override;
  Status AwaitVerdict() const override {
    first_verdict_.Await();
    return status();
  }
  std::string verdict_key() const override;
  bool ended() const override { return ended_.load(std::memory_order_seq_cst); }
  void Submit(const Command& command) override { engine_->Submit(command); }
  FirstPushWarnings& first_push_warnings() override { return first_push_warnings_; }
  std::string ExplainWait(const std::string& key) const override {
    return calls_.ExplainWait(settings_.tenant, key);
  }
  void GiveUp(Status verdict) override { Fail(std::move(verdict)); }

  std::uint32_t world_size() const { return settings_.options.world_size; }
  bool created() const { return calls_.links().front()->joined.created(); }
  bool resumed() const { return resume_.resumed; }
  std::uint64_t iteration() const;
  IterationOutcome last_iteration() const;
  std::string transports() const { return lanes_->Transports(); }

  Result<std::vector<std::shared_ptr<KeyImpl>>> AddKeys(std::span<const KeySpec> specs);
  Status RemoveKeys(std::span<const std::shared_ptr<KeyImpl>> keys);  // job_removal.cc
  JobGroups& groups() { return groups_; }
  JobBarriers& barriers() { return barriers_; }
  Result<std::uint64_t> SaveCheckpoint(const std::string& directory, CheckpointOptions options);
  Result<std::uint64_t> LoadCheckpoint(const std::string& directory, CheckpointOptions options);
  Status Leave();
  Status SetRecorder(Recorder recorder) { return dump_answers_.SetRecorder(std::move(recorder)); }

  // EngineListener, on the engine's thread.
  void OnLaneClosed(const LaneClosed& closed) override {
    open_lanes_.Closed(closed.lane);
    watch_->OnLaneClosed(closed);
  }
  void OnStopped() override;
  // RackWatch::Owner, on threads of the watch and of the channels.
  void OnVerdict(Status verdict, const std::string& key, const DaemonLink& from) override {
    first_verdict_.Offer({std::move(verdict), key, &from});
  }
  void OnSavedState(const v1::SavedState& state) override;
  void OnDumpRequested(const v1::DumpRequested& request, const DaemonLink& from) override {
    dump_answers_.Answer(request, from);
  }
  DurationNs LaneSilence(std::uint32_t lane) const override { return engine_->Silence(lane); }
  void CloseSilentLane(std::uint32_t lane) override {
    Submit({.kind = Command::Kind::kCloseSilentLane, .lane = lane});
  }
  void OnLaneOpened(std::uint32_t lane, std::uint8_t transport_index,
                    transport::Connection& connection) override;

 private:
  friend class JobGroups;
  explicit JobImpl(JobSettings settings);

  // job_start.cc
  Status JoinRackAndStart();
  absl::Status StartThreads();
  Status AskWhereToResume();

  // job_keys.cc
  Result<std::vector<KeyDefinition>> CheckSpecs(std::span<const KeySpec> specs) const;
  Status CheckBoundary() const;  // restart, apply: keys are added between iterations
  Result<std::vector<std::shared_ptr<KeyImpl>>> AddBatch(std::vector<KeyDefinition> definitions);
  Result<std::vector<std::shared_ptr<KeyImpl>>> Enter(std::vector<KeyDefinition> definitions,
                                                      const AddedBatch& added);

  // Takes memory for the keys, and describes them to the engine in `batch`.
  Result<std::vector<std::shared_ptr<KeyImpl>>> MakeKeys(std::vector<KeyDefinition> definitions,
                                                         std::vector<KeyLayout> layouts,
                                                         const AddedBatch& added, KeyBatch& batch);

  // Null: a new key.
  const KeyResume* ResumeOf(KeyIndex key) const {
    return key.value < resume_.keys.size() ? &resume_.keys[key.value] : nullptr;
  }
  // Fetches the values that existing keys had at the boundary. Blocks until they have arrived.
  Status ResumeKeys(std::span<const std::shared_ptr<KeyImpl>> keys);

  // job_checkpoint.cc
  struct CheckpointAccess;
  // call: its name in the log.
  CheckpointAccess AccessCheckpoint(const char* call, bool lasts) const;
  Status SendCheckpoint(const std::string& directory, bool lasts);
  Status RefuseLoad(const Status& why);
  Status FetchLoaded(std::optional<v1::LoadedState>& loaded);
  Status PutInPlace(const v1::LoadedState& loaded);
  void NoteSavedState(const v1::SavedState& state, TimeNs at);
  Status WithCheckpoint(Status verdict) const;  // adds the latest checkpoint; holding mutex_

  // job_impl.cc
  std::uint64_t LeastIteration() const;
  Status Drain();
  Status LeaveEverywhere();
  void LeaveElsewhere(const std::string& verdict, const DaemonLink* from, const DaemonLink* anchor);
  void Shutdown(Status verdict);
  // Only the first verdict counts. Stops the engine, and leaves all daemons except `from`, which
  // sent the verdict, and `anchor`, which has it. Not on the engine's thread.
  void Fail(Status verdict, std::string key = {}, const DaemonLink* from = nullptr,
            const DaemonLink* anchor = nullptr);
  std::vector<std::shared_ptr<KeyImpl>> Keys() const;  // keys of the whole job
  std::vector<std::shared_ptr<KeyImpl>> AllKeys() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<KeyImpl>> keys = keys_;
    groups_.AppendKeys(keys);
    return keys;
  }

  const JobSettings settings_;
  const SystemClock clock_;
  RackCalls calls_;
  JobBarriers barriers_{calls_, *this, settings_.tenant};
  RackBatches rack_batches_;
  DumpAnswers dump_answers_{calls_, clock_, [this] { return AllKeys(); }};
  FirstVerdict first_verdict_{
      calls_.links(), [this](FirstVerdict::Verdict verdict, const DaemonLink* anchor) {
        Fail(std::move(verdict.status), std::move(verdict.key), verdict.from, anchor);
      }};
  OpenLanes open_lanes_;
  std::unique_ptr<LaneLayout> layout_;
  std::unique_ptr<LaneWays> ways_;  // for the lanes and the engine
  std::unique_ptr<RackLanes> lanes_;
  std::unique_ptr<RackWatch> watch_;
  SumSockets sum_sockets_;  // for the engine
  std::unique_ptr<EngineThread> engine_;
  ResumePlan resume_;  // fixed once joined
  FirstPushWarnings first_push_warnings_;
  Timeline* const timeline_ = Timeline::OfProcess();  // null: nothing is recorded
  bool in_timeline_ = false;

  std::mutex calls_mutex_;
  std::vector<std::unique_ptr<KeyBatch>> batches_;
  bool left_ = false;
  Status leave_status_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<KeyImpl>> keys_;  // [key index]
  JobGroups groups_{*this};
  std::uint64_t keyless_iteration_ = 0;  // the job's iteration without keys that are not collective
  Status verdict_;
  std::string verdict_key_;
  std::string saved_state_;  // description of the newest checkpoint that this rank knows of
  TimeNs saved_state_at_ = std::numeric_limits<TimeNs>::min();  // time of its snapshot, on clock_
  int leaves_pending_ = 0;                                      // calls by LeaveElsewhere()
  std::atomic<bool> failed_{false};                             // verdict_ is set
  std::atomic<bool> ended_{false};
  std::atomic<bool> leaving_{false};  // a Leave call was or is being sent
};

}  // namespace phub::client
