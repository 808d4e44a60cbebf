// A worker process of the simulation: the product's engine and lane layout, driven by a script
// instead of a training loop. Events replace libphub's threads and gRPC: joining every daemon of
// the rack, opening lanes, adding keys, watching daemons, and reconnecting.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/engine.h"
#include "client/layout.h"
#include "client/session/endpoint.h"
#include "client/session/first_verdict.h"
#include "client/session/resume_plan.h"
#include "common/transport/shm/shm_dial.h"
#include "tests/sim/script.h"
#include "tests/sim/sim_control_channel.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_transport.h"

namespace phub::sim {

// What all workers of a job share.
struct SimJob {
  JobScript script;
  std::uint32_t joined_count = 0;  // ranks that have joined
  bool control_outages = false;    // control may be stuck; calls wait for it
  // Computes what to expect of a group of several racks from rack 0's plan for it. Null: one rack.
  std::function<void(Incarnation, std::uint32_t group)> learn_plan;
};

class SimWorker final : public client::EngineListener {
 public:
  enum class State : std::uint8_t {
    kJoining,  // every daemon, lanes, keys
    kTraining,
    kLeaving,
    kStopping,  // it received a verdict; the engine closes its lanes
    kLeft,      // ended in order
    kFailed,    // ended with a verdict
    kDead,      // crashed; does nothing any more
  };

  // `daemons`: those of its rack.
  SimWorker(SimNetwork& network, std::span<const std::unique_ptr<SimDaemon>> daemons,
            SeededRandom& random, SimJob& job, std::uint32_t rank, NodeId node);
  ~SimWorker() override;

  void Start();  // joins
  bool Run();    // runs engine and script; true if anything was done
  void Crash(bool silent);
  void BreakLane(std::uint32_t lane);
  // The network between this worker and a daemon loses everything from now on, in one direction or
  // both. Control is not affected. Returns false if all lanes of this worker are in shared memory.
  enum class Cut : std::uint8_t { kBoth, kToDaemon, kFromDaemon };
  bool CutLanes(Cut cut);
  // Breaks a random open lane, or a stream, if the job's policy allows it.
  void BreakSomething();

  State state() const { return state_; }
  bool was_in() const { return engine_ != nullptr; }  // every daemon accepted it
  bool done() const;
  const std::string& verdict() const { return verdict_; }
  TimeNs verdict_at() const { return verdict_at_; }
  // agreed: the verdict is the anchor's. stands_alone: it is not, because the anchor did not
  // answer. Both are false if the rank had not joined yet or was leaving.
  bool agreed() const { return agreed_; }
  bool stands_alone() const { return stands_alone_; }
  bool ended_leaving() const { return ended_leaving_; }  // the verdict came while it left
  // Why the run is wrong, or an empty string: parameters that differ, an unexpected refusal.
  const std::string& mistake() const { return mistake_; }
  // The number of rounds of the first key that are complete here.
  std::uint64_t progress() const;
  std::uint64_t gradients_copied() const {
    return engine_ == nullptr ? 0 : engine_->counters().gradients_copied;
  }
  std::uint64_t parameters_shared() const { return parameters_shared_; }
  std::uint64_t reduced_in_place() const { return reduced_in_place_; }
  std::uint64_t streams_broken() const { return streams_broken_; }
  std::uint64_t keys_resumed() const { return keys_resumed_; }
  std::uint64_t collective_rounds() const { return collective_rounds_; }
  std::uint64_t encoded_rounds() const { return encoded_rounds_; }
  std::uint64_t pooled_rounds() const { return pooled_rounds_; }
  std::uint64_t pooled_moves() const { return pooled_moves_; }
  std::uint64_t group_rounds() const { return group_rounds_; }
  std::uint64_t group_rounds_across() const { return group_rounds_across_; }
  std::uint64_t groups_removed() const { return groups_removed_; }
  std::uint64_t keys_removed() const { return removed_keys_.size(); }
  std::uint64_t keys_resumed_back() const { return keys_resumed_back_; }
  const std::string& SessionAt(std::size_t position) const {
    return links_[position]->joined.session_id();
  }
  std::string Describe() const;
  std::uint64_t ParameterHash() const;

  void OnLaneClosed(const client::LaneClosed& closed) override;
  void OnStopped() override;

 private:
  class Key;
  // One daemon, as this worker sees it.
  struct Link final : client::ControlChannel::Observer {
    Link(SimWorker& worker_in, SimDaemon& daemon_in, client::DaemonLink& known_in,
         SimControlChannel& channel_in)
        : worker(worker_in), daemon(daemon_in), known(known_in), channel(&channel_in) {}
    void OnEvent(const v1::SessionEvent& event) override { worker.OnEvent(*this, event); }
    void OnAttendClosed(const absl::Status& status) override {
      worker.OnAttendClosed(*this, status);
    }

    SimWorker& worker;
    SimDaemon& daemon;
    client::DaemonLink& known;         // for the product's classes
    SimControlChannel* const channel;  // known.channel
    v1::JoinResponse& joined = known.joined;
    v1::Rack rack;
    v1::GetVersionsResponse versions;
    v1::AddKeysResponse placed;
    std::uint32_t first_lane = 0;
    bool shared = false;  // all lanes are in shared memory
    std::shared_ptr<transport::SharedRegions> regions;
    std::vector<std::uint32_t> regions_before;  // [batch]: in `regions`
    bool attended = false;
    TimeNs last_heard = 0;
    TimeNs vouched_at = 0;  // when its lanes last showed that it is alive
    TimeNs lost_at = 0;     // when the stream was lost; 0: it has had an event since
    TimeNs silent_at = 0;   // policy wait: when the daemon fell silent; 0: it answers
    phub::Status why;       // why it was lost
    TimeNs refused_at = 0;  // the last attempt to open a stream that reached nobody
    phub::Status lane_why;  // why the last lane was lost
    TimeNs lane_lost_at = 0;
  };
  struct Lane {
    std::unique_ptr<transport::Connection> connection;  // null: none, or being opened
    bool attached = false;
    bool shared = false;
    bool opened = false;  // at least once
  };

  // Joins.
  void AskRack();
  v1::JoinRequest JoinRequestTo(const Link& link) const;
  void Reserve(std::size_t position);
  void Commit(std::size_t position);
  void GiveBack(const Link& refused, const absl::Status& why, bool run_is_over);
  void Begin();
  void AskWhereToResume();
  void AskVersions(Link& link, client::ControlChannel::Done<v1::GetVersionsResponse> done);
  void PlanResume();
  v1::AddKeysRequest NextBatch() const;
  void AddNextBatch();
  void OnKeysAdded();
  void StartTraining();
  std::uint64_t ElementCount(const KeyScript& key) const;

  // The memory of a key: offsets into the batch's region.
  struct MemoryPlan {
    static constexpr std::uint64_t kElsewhere = UINT64_MAX;
    std::uint64_t gradients = kElsewhere;
    std::uint64_t parameters = kElsewhere;
    bool parameters_shared = false;  // the daemon's own memory, if it shares it
  };

  // Shared memory.
  void DrawSharing();
  Link* SharingLink() const;
  std::unique_ptr<transport::Connection> AttachShared(Link& link, const wire::LaneHello& hello);
  std::uint64_t PlanMemory(const v1::AddKeysRequest& request);
  bool FetchMemory(Link& link, std::uint32_t batch);
  void TakeMemory(Key& key, const MemoryPlan& plan, const v1::KeyPlacement& placement);
  void TakeSharedMemory(Key& key, const MemoryPlan& plan, const v1::KeyPlacement& placement);

  // Lanes.
  Link& LinkOf(std::uint32_t lane);
  void OpenLanes(Link& link, const std::vector<std::uint32_t>& lanes);
  void OnGranted(Link& link, const absl::StatusOr<v1::OpenLanesResponse>& answer);
  void Dial(std::uint32_t lane, const wire::LaneHello& hello);
  bool WantsLanes() const { return state_ == State::kJoining || state_ == State::kTraining; }

  // Daemons.
  void Attend(Link& link);
  void Heartbeat();
  void LookAt(Link& link);
  transport::SilenceJudge JudgeOf(const Link& link) const;
  void CloseSilentLanes(const Link& link);
  bool HasLanes(const Link& link) const;
  void OnEvent(Link& link, const v1::SessionEvent& event);
  void OnAttendClosed(Link& link, const absl::Status& status);
  static const client::Endpoint& EndpointOf(const Link& link) { return link.known.endpoint; }
  void Fail(const phub::Status& verdict, const Link* from);
  void Settle(const client::FirstVerdict::Verdict& verdict, const client::DaemonLink* anchor);
  void End(const phub::Status& verdict, const Link* from, const client::DaemonLink* anchor);
  void Refused(const char* what, const Link& link, const absl::Status& status);
  // Control calls without an answer end after these timeouts. Across racks, a call may be held
  // until an unresponsive daemon is detected.
  DurationNs LeaveTimeout() const { return job_.control_outages ? kOutagePatience : 2 * kSecond; }
  DurationNs CallTimeout() const {
    if (job_.control_outages) return kOutagePatience;
    return (script_.racks > 1 ? 10 : 2) * kSecond;
  }
  static constexpr DurationNs kOutagePatience = 60 * kSecond;
  // Calls every daemon, then `done` when all have answered OK. The first refusal is the verdict.
  template <typename Response>
  void CallAll(const char* what,
               const std::function<void(Link&, client::ControlChannel::Done<Response>)>& call,
               const std::function<void(Link&, const Response&)>& take,
               const std::function<void()>& done);

  // Training.
  bool Train();
  bool MayStart(const Key& key) const;
  void StartRound(Key& key);
  void EncodeInto(Key& key, const std::vector<float>& values, std::uint64_t iteration);
  void Resume(Key& key, const client::KeyResume& resume);
  void CheckRound(Key& key);
  bool MayRemoveKeys() const;
  void RemoveLastBatch();
  void OnKeysRemoved(std::uint32_t batch);
  // Groups (sim_worker_groups.cc).
  void SkipOtherGroups();
  std::uint32_t KeyOfGroup(std::uint32_t group) const;
  void AddNextGroup();
  void OnGroupAdded();
  bool RemoveNextGroup();
  void LeaveInOrder();
  void Stop();
  void Submit(const client::Command& command);
  void After(DurationNs delay, std::function<void()> what);
  bool IsCulprit(Fate fate) const { return script_.fate == fate && script_.culprit == rank_; }

  SimNetwork& network_;
  SeededRandom& random_;
  SimJob& job_;
  const JobScript& script_;
  const std::uint32_t rank_;
  const NodeId node_;
  // Scheduled events outlive a crash. They hold this flag and check it.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  client::DaemonLinks known_;                 // in the list's order
  std::vector<std::unique_ptr<Link>> links_;  // the same
  client::FirstVerdict first_verdict_{
      known_, [this](const client::FirstVerdict::Verdict& verdict,
                     const client::DaemonLink* anchor) { Settle(verdict, anchor); }};
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::unique_ptr<client::Engine> engine_;
  std::unique_ptr<client::LaneLayout> layout_;
  client::EngineConfig config_;
  client::ResumePlan plan_;
  std::vector<std::unique_ptr<Key>> keys_;
  std::vector<std::unique_ptr<client::KeyBatch>> batches_;
  std::vector<Lane> lanes_;
  std::vector<client::Command> waiting_;  // found the engine's queue full
  State state_ = State::kJoining;
  bool lanes_opened_ = false;
  std::uint32_t next_batch_ = 0;
  std::uint32_t removals_done_ = 0;
  bool removing_ = false;  // until the batch is added again
  std::vector<std::unique_ptr<Key>> removed_keys_;
  std::vector<std::unique_ptr<client::KeyBatch>> removed_batches_;
  std::uint64_t heartbeat_sequence_ = 0;
  DurationNs liveness_timeout_ = 0;
  TimeNs verdict_at_ = 0;
  std::vector<MemoryPlan> memory_plans_;          // for the batch that is being added
  std::vector<transport::FetchedBatch> fetched_;  // keeps the mappings
  // By batch: the memory of the daemon that shares it.
  std::vector<transport::FetchedBatch> batch_memory_;
  std::uint64_t parameters_shared_ = 0;
  std::uint64_t reduced_in_place_ = 0;
  std::uint64_t streams_broken_ = 0;
  std::uint64_t keys_resumed_ = 0;
  std::uint64_t collective_rounds_ = 0;
  std::uint64_t encoded_rounds_ = 0;
  std::uint64_t pooled_rounds_ = 0;
  std::uint64_t pooled_moves_ = 0;
  struct JoinedGroup {
    std::uint64_t id = 0;
    std::unique_ptr<client::KeyBatch> batch;
  };
  std::vector<JoinedGroup> groups_;  // that this rank is a member of
  std::uint32_t next_group_ = 0;     // to be added, of the script; then to be removed, of `groups_`
  bool groups_added_ = false;
  std::uint64_t group_rounds_ = 0, group_rounds_across_ = 0, groups_removed_ = 0;
  std::uint64_t keys_resumed_back_ = 0;  // to the version before the newest
  bool agreed_ = false, stands_alone_ = false, ended_leaving_ = false;
  std::string verdict_, mistake_;
};

}  // namespace phub::sim
