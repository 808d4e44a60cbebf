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
#include "client/push/iteration_decider.h"
#include "client/push/iteration_gate.h"
#include "client/push/sender.h"
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
  void TakeMessage(Lane& lane, const wire::MessageHeader& header);
  void TakeClosed(Lane& lane, const transport::Completion& completion);
  void CloseLane(Lane& lane);
  void CloseSilentLane(Lane& lane);
  void LookAtLanes(TimeNs now);
  bool SendAll();

  // engine_rounds.cc
  void AddKeys(const KeyBatch& batch);
  void AddKey(const KeyPlan& plan);
  void RemoveKeys(KeyIndex first);
  void ShrinkLane(Lane& lane, KeyIndex first);
  void GrowLane(Lane& lane, std::size_t chunks_added, std::size_t keys_added);
  void Push(const Command& command);
  void Resume(const Command& command);
  EngineKey& BeginRound(const Command& command);
  void StartRound(EngineKey& key);
  void Cancel(const Command& command);
  void CompleteRound(EngineKey& key);

  EngineKey& key(KeyIndex index) {
    PHUB_CHECK(index.value < keys.size(), "key={} keys={}", index.value, keys.size());
    return *keys[index.value];
  }

  const EngineConfig config;
  const Clock& clock;
  const std::vector<transport::Transport*> transports;
  EngineListener& listener;
  SpscQueue<Command> commands;
  std::vector<Lane> lanes;
  std::vector<std::unique_ptr<EngineKey>> owned_keys;
  std::vector<EngineKey*> keys;
  // [transport][connection index]: the lane. Take() compares the whole connection id.
  std::vector<std::vector<std::uint32_t>> lane_of_connection;
  EngineCounters counters;
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
