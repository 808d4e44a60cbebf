// Keys and their rounds, from the command that starts a round to the event of its completion.
#include <cstddef>

#include "client/engine_impl.h"
#include "client/push/ready_queue.h"

namespace phub::client {

namespace {

// How many chunks the round covers. All chunks of a pooled key but the last have the same size.
std::uint32_t RoundChunks(const EngineKey& key) {
  if (!key.pooled) return key.chunk_count;
  const std::uint64_t bytes = key.pool.elements * numeric::ElementBytes(key.payload_type);
  return static_cast<std::uint32_t>((bytes + key.chunk_elements - 1) / key.chunk_elements);
}

}  // namespace

EngineKey& Engine::Impl::BeginRound(const Command& command) {
  EngineKey& begun = key(command.key);
  PHUB_CHECK(!begun.active, "key={} ticket={}", command.key.value, command.ticket);
  begun.active = true;
  begun.sent_any = false;
  begun.ticket = command.ticket;
  begun.operation = command.operation;
  begun.payload_type = command.payload_type;
  begun.pool = command.pool;
  begun.round_chunks = RoundChunks(begun);
  begun.chunks_left = begun.chunks_unsent = begun.round_chunks;
  begun.root = command.root;
  begun.parameters = command.parameters;
  begun.parameters_shared = command.parameters_shared;
  begun.skip = command.skip;
  begun.first_iteration_after = begun.first_iteration;
  begun.reductions_after = begun.reductions;
  return begun;
}

void Engine::Impl::Push(const Command& command) {
  if (stopping) return;  // callers get the verdict of the job
  EngineKey& pushed = BeginRound(command);
  pushed.pulling = false;
  pushed.iteration = Iteration{pushed.completed.value + 1};
  pushed.gradients = command.gradients;
  switch (command.operation) {
    case wire::RoundOperation::kReduce:
      PHUB_CHECK(command.payload_type == pushed.gradient_type, "key={}", command.key.value);
      ++pushed.reductions_after;
      break;
    case wire::RoundOperation::kPool:
    case wire::RoundOperation::kPoolMove:
    case wire::RoundOperation::kMove: ++pushed.reductions_after; break;
    case wire::RoundOperation::kAssign: break;
    case wire::RoundOperation::kLoad:
      pushed.gradients = nullptr;
      pushed.first_iteration_after = command.first_iteration;
      pushed.reductions_after = command.reductions;
      break;
  }
  pushed.previous_hyper_version = pushed.hyper_version;
  pushed.previous_values = pushed.announced_values;
  if (!(pushed.wanted_values == pushed.announced_values)) {
    ++pushed.hyper_version.value;
    pushed.announced_values = pushed.wanted_values;
  }
  if (gate.Hold(pushed))
    ++counters.pushes_held;
  else
    StartRound(pushed);
}

void Engine::Impl::Resume(const Command& command) {
  if (stopping) return;
  EngineKey& resumed = BeginRound(command);
  PHUB_CHECK(resumed.completed == Iteration{}, "key={}", command.key.value);
  resumed.pulling = true;
  resumed.iteration = command.version;
  resumed.gradients = nullptr;
  resumed.first_iteration_after = command.first_iteration;
  resumed.reductions_after = command.reductions;
  if (command.hyper_version.value > 0) {
    resumed.hyper_version = command.hyper_version;
    resumed.announced_values = resumed.wanted_values = command.hyper_parameters;
  }
  StartRound(resumed);
}

void Engine::Impl::StartRound(EngineKey& started) {
  if (started.collective) started.order = ++collective_rounds;
  for (const EngineKey::Part& part : started.parts) {
    Lane& lane = lanes[part.lane];
    StartLaneKey(lane, started, part.lane_key);
    // A detached lane queues its ready chunks when it is attached again.
    if (lane.state == Lane::State::kOpen)
      QueueUnsent(lane, keys, part.lane_key, *transports[lane.transport_index]);
  }
}

void Engine::Impl::CompleteRound(EngineKey& completed) {
  const std::uint64_t before = completed.job_iteration();
  // This reduction was decided before its replies arrived. The next one is decided only after they
  // have all arrived, so the last decision is the one for this round.
  const bool skipped = config.apply_iteration && !completed.collective && !completed.pulling &&
                       completed.operation == wire::RoundOperation::kReduce &&
                       decider.last_skipped();
  if (skipped) completed.reductions_after = completed.reductions;
  completed.active = false;
  completed.completed = completed.iteration;
  completed.first_iteration = completed.first_iteration_after;
  completed.reductions = completed.reductions_after;
  ++counters.rounds;
  gate.Advance(keys, completed, before);
  while (EngineKey* released = gate.Release()) StartRound(*released);
  completed.listener->OnRoundComplete(completed.ticket, completed.completed, skipped);
}

void Engine::Impl::Cancel(const Command& command) {
  EngineKey& pushed = key(command.key);
  const bool withdrawn =
      !stopping && pushed.active && pushed.ticket == command.ticket && !pushed.sent_any;
  if (withdrawn) {
    gate.Withdraw(pushed);
    for (const EngineKey::Part& part : pushed.parts) {
      Lane& lane = lanes[part.lane];
      const LaneKey& lane_key = lane.keys[part.lane_key];
      RemoveLaneKey(lane, part.lane_key);
      for (std::uint32_t c = lane_key.first; c < lane_key.end(); ++c)
        lane.chunks[c].phase = LaneChunk::Phase::kIdle;
    }
    pushed.active = false;
    pushed.chunks_left = 0;
    pushed.hyper_version = pushed.previous_hyper_version;
    pushed.announced_values = pushed.previous_values;
  }
  pushed.listener->OnCancelAnswered(command.ticket, withdrawn);
}

}  // namespace phub::client
