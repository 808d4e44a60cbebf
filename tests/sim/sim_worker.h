// A worker of the simulation: the product's engine and lane layout, driven by a script instead of
// a training loop. What libphub does with threads and gRPC happens here as events.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/engine.h"
#include "client/layout.h"
#include "tests/sim/script.h"
#include "tests/sim/sim_control_channel.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_transport.h"

namespace phub::sim {

class SimWorker final : public client::EngineListener, public client::ControlChannel::Observer {
 public:
  enum class State : std::uint8_t {
    kJoining,  // join, keys, lanes
    kTraining,
    kLeaving,
    kStopping,  // a verdict came; the engine closes its lanes
    kLeft,      // done, in order
    kFailed,    // done, with a verdict
    kDead,      // crashed: it does nothing any more
  };

  SimWorker(SimNetwork& network, SimDaemon& daemon, SeededRandom& random, const JobScript& job,
            std::uint32_t rank, NodeId node, std::uint32_t& joined_count);
  ~SimWorker() override;

  void Start();  // joins
  bool Run();    // engine and script; true if anything was done
  void Crash(bool silent);
  void BreakLane(std::uint32_t lane);
  // Breaks a random open lane, if the job's policy allows for it.
  void BreakSomeLane();

  State state() const { return state_; }
  bool done() const;
  const std::string& verdict() const { return verdict_; }
  TimeNs verdict_at() const { return verdict_at_; }
  // Why the run is wrong, if it is: parameters that differ, a refusal that nobody expected.
  const std::string& mistake() const { return mistake_; }
  // Rounds of the first key that are complete here.
  std::uint64_t progress() const;
  std::uint64_t rounds() const { return rounds_; }
  std::string Describe() const;
  std::uint64_t ParameterHash() const;

  void OnLaneClosed(const client::LaneClosed& closed) override;
  void OnStopped() override;
  void OnEvent(const v1::SessionEvent& event) override;
  void OnAttendClosed(const absl::Status&) override {}

 private:
  class Key;
  struct Lane {
    std::unique_ptr<transport::Connection> connection;  // null: none, or being opened
    bool attached = false;
  };

  void OnJoined(const absl::StatusOr<v1::JoinResponse>& response);
  void AddNextBatch();
  std::uint64_t ElementCount(const KeyScript& key) const;
  void OnKeysAdded(const absl::StatusOr<v1::AddKeysResponse>& response);
  void OpenLanes(std::vector<std::uint32_t> lanes);
  void OnGranted(const absl::StatusOr<v1::OpenLanesResponse>& response);
  void Dial(std::uint32_t lane, const wire::LaneHello& hello);
  void Heartbeat();
  void Fail(const std::string& verdict);
  void Refused(const char* what, const absl::Status& status);

  bool Train();
  bool MayStart(const Key& key) const;
  void StartRound(Key& key);
  void CheckRound(Key& key);
  void LeaveOrder();
  void Submit(const client::Command& command);
  void After(DurationNs delay, std::function<void()> what);
  bool IsCulprit(Fate fate) const { return job_.fate == fate && job_.culprit == rank_; }

  SimNetwork& network_;
  SimDaemon& daemon_;
  SeededRandom& random_;
  const JobScript& job_;
  const std::uint32_t rank_;
  const NodeId node_;
  std::uint32_t& joined_count_;  // ranks of the job that have joined
  // Events outlive a crash; they hold this and look whether it is still true.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<SimTransport> transport_;
  std::unique_ptr<SimControlChannel> channel_;
  std::unique_ptr<client::Engine> engine_;
  std::unique_ptr<client::LaneLayout> layout_;
  client::EngineConfig config_;
  std::vector<std::unique_ptr<Key>> keys_;
  std::vector<std::unique_ptr<client::KeyBatch>> batches_;
  std::vector<Lane> lanes_;
  std::vector<client::Command> waiting_;  // found the engine's queue full
  State state_ = State::kJoining;
  std::string session_id_;
  std::uint32_t next_batch_ = 0;
  std::uint64_t heartbeat_sequence_ = 0;
  DurationNs heartbeat_interval_ = 0;
  TimeNs verdict_at_ = 0;
  std::uint64_t rounds_ = 0;
  std::string verdict_, mistake_;
};

}  // namespace phub::sim
