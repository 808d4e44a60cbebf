// The implementation of Engine, for engine.cc (commands, lanes) and engine_rounds.cc (keys,
// rounds).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "client/engine.h"
#include "client/pull/receiver.h"
#include "client/push/iteration_decider.h"
#include "client/push/iteration_gate.h"
#include "client/push/sender.h"
#include "client/sums/lane_sums.h"
#include "common/base/check.h"
#include "common/base/spsc_queue.h"
#include "common/transport/silence_meter.h"

namespace phub::client {

struct Engine::Impl {
  // Enough for a push of every layer of a deep model at once. Submitters wait while it is full.
  static constexpr std::size_t kCommandsMax = 1024;
  // Limit per RunOnce(), so that lanes are polled between bursts of commands.
  static constexpr std::size_t kCommandsPerRun = 256;
  static constexpr std::size_t kCompletionsPerPoll = 64;

  Impl(const EngineConfig& config_in, const Clock& clock_in,
       std::span<transport::Transport* const> transports_in, EngineListener& listener_in);

  // engine.cc
  bool RunCommands();
  void Execute(const Command& command);
  void AttachLane(const Command& command);
  void Stop();
  bool PollTransport(std::size_t transport_index);
  void Take(std::size_t transport_index, const transport::Completion& completion);
  void TakeMessage(Lane& lane, const transport::ReceivedMessage& message);
  void TakeClosed(Lane& lane, const transport::Completion& completion);
  void CloseLane(Lane& lane);
  void CloseSilentLane(Lane& lane);
  void LookAtLanes(TimeNs now);
  bool SendAll();

  // engine_sums.cc
  void MakeSums();
  static bool IsOfStream(wire::MessageKind kind);
  Received TakeStreamMessage(Lane& lane, const transport::ReceivedMessage& message);
  void QueueAgain(Lane& lane, std::uint32_t lane_key);
  void TakeParameters(Lane& lane);
  void AskForParameters(Lane& lane);
  bool PollSums(TimeNs now);

  // engine_keys.cc
  void AddKeys(const KeyBatch& batch);
  void AddKey(const KeyPlan& plan);
  void RemoveKeys(const Command& command);
  void RemoveKey(EngineKey& removed);
  void GrowLane(Lane& lane, std::size_t chunk_end, std::size_t keys_added);
  void ShrinkLane(Lane& lane);
  void ResizeLanding(Lane& lane);
  EngineKey& key(KeyIndex index);
  std::uint32_t* FindPosition(KeyIndex index);  // null: no key has had that number

  // engine_rounds.cc
  void Push(const Command& command);
  void Resume(const Command& command);
  EngineKey& BeginRound(const Command& command);
  void StartRound(EngineKey& key);
  void Cancel(const Command& command);
  void CompleteRound(EngineKey& key);

  const EngineConfig config;
  const Clock& clock;
  const std::vector<transport::Transport*> transports;
  EngineListener& listener;
  SpscQueue<Command> commands;
  std::vector<Lane> lanes;
  std::vector<std::unique_ptr<EngineKey>> owned_keys;  // [position]
  std::vector<EngineKey*> keys;                        // [position]; null: free
  std::vector<std::uint32_t> free_positions;
  // [number of the key; for groups, from kGroupKeysFirst on]: its position.
  static constexpr std::uint32_t kNoPosition = UINT32_MAX;
  std::vector<std::uint32_t> job_positions, group_positions;
  // [transport][connection index]: the lane. Take() compares the whole connection id.
  std::vector<std::vector<std::uint32_t>> lane_of_connection;
  std::vector<std::unique_ptr<LaneSums>> sums;  // [lane]; empty: none
  EngineCounters counters;
  std::uint32_t collective_rounds = 0;  // started; see EngineKey::order
  transport::LookTimer timer;
  const std::unique_ptr<std::atomic<DurationNs>[]> silences;  // [lane]
  Sender sender;
  IterationGate gate;
  IterationDecider decider;
  bool stopping = false;
  bool stopped = false;
  std::array<transport::Completion, kCompletionsPerPoll> completions;
};

}  // namespace phub::client
