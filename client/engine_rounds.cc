// Keys and their rounds, from the command that starts a round to the event of its completion.
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "client/engine_impl.h"
#include "client/push/ready_queue.h"

namespace phub::client {

namespace {

// The lane key that a chunk of a key needs.
LaneKey LaneKeyFor(const KeyPlan& plan, const ChunkPlace& place) {
  return {.key = plan.layout.key.value,
          .first = place.chunk.value,
          .priority = plan.priority,
          .sends = place.sender == kEveryRank || place.sender == plan.rank,
          .receives = place.receiver == kEveryRank || place.receiver == plan.rank};
}

// Whether the next chunk of the same key on a lane may be in the lane key of the last one.
bool Continues(const LaneKey& last, const LaneKey& next) {
  return last.sends == next.sends && last.receives == next.receives;
}

// How many chunks the round covers. All chunks of a pooled key but the last have the same size.
std::uint32_t RoundChunks(const EngineKey& key) {
  if (!key.pooled) return key.chunk_count;
  const std::uint64_t bytes = key.pool.elements * numeric::ElementBytes(key.payload_type);
  return static_cast<std::uint32_t>((bytes + key.chunk_elements - 1) / key.chunk_elements);
}

}  // namespace

void Engine::Impl::AddKeys(const KeyBatch& batch) {
  std::vector<std::size_t> chunks_added(lanes.size(), 0);
  std::vector<std::size_t> keys_added(lanes.size(), 0);
  for (const KeyPlan& plan : batch.keys) {
    std::vector<std::optional<LaneKey>> last(lanes.size());
    for (const ChunkPlace& place : plan.layout.chunks) {
      PHUB_CHECK(place.lane < lanes.size(), "lane={}", place.lane);
      ++chunks_added[place.lane];
      const LaneKey next = LaneKeyFor(plan, place);
      if (!last[place.lane] || !Continues(*last[place.lane], next)) ++keys_added[place.lane];
      last[place.lane] = next;
    }
  }
  for (std::size_t l = 0; l < lanes.size(); ++l) GrowLane(lanes[l], chunks_added[l], keys_added[l]);
  for (const KeyPlan& plan : batch.keys) AddKey(plan);
  gate.AddKeys(keys);
  decider.AddKeys(batch);
}

// The connection may be receiving, so it must switch to the new landing table.
void Engine::Impl::GrowLane(Lane& lane, std::size_t chunks_added, std::size_t keys_added) {
  if (chunks_added == 0) return;
  lane.chunks.reserve(lane.chunks.size() + chunks_added);
  lane.keys.reserve(lane.keys.size() + keys_added);
  for (std::vector<ReadyKey>& heap : lane.ready) heap.reserve(lane.keys.capacity());
  std::vector<transport::LandingSlot> landing(lane.landing);
  landing.resize(lane.landing.size() + chunks_added);
  lane.landing.swap(landing);
  if (lane.state == Lane::State::kOpen)
    transports[lane.transport_index]->SetLanding(lane.connection, lane.landing);
}

void Engine::Impl::AddKey(const KeyPlan& plan) {
  PHUB_CHECK(plan.layout.key.value == keys.size(), "key={}", plan.layout.key.value);
  auto added = std::make_unique<EngineKey>();
  added->index = plan.layout.key;
  added->collective = plan.collective;
  added->pooled = plan.pooled;
  added->gradient_type = plan.gradient_type;
  added->parameter_type = plan.parameter_type;
  added->encoding = plan.encoding;
  added->chunk_elements = plan.layout.chunks.front().element_count;
  added->first_iteration = plan.first_iteration;
  added->listener = plan.listener;
  added->chunk_count = static_cast<std::uint32_t>(plan.layout.chunks.size());
  added->announced_values = added->previous_values = added->wanted_values = plan.hyper_parameters;
  std::vector<std::uint32_t> lane_key_of(lanes.size(), UINT32_MAX);
  for (const ChunkPlace& place : plan.layout.chunks) {
    Lane& lane = lanes[place.lane];
    PHUB_CHECK(place.chunk.value == lane.chunks.size(), "chunk={}", place.chunk.value);
    const LaneKey next = LaneKeyFor(plan, place);
    std::uint32_t& lane_key = lane_key_of[place.lane];
    if (lane_key == UINT32_MAX || !Continues(lane.keys[lane_key], next)) {
      lane_key = static_cast<std::uint32_t>(lane.keys.size());
      added->parts.push_back({.lane = place.lane, .lane_key = lane_key});
      lane.keys.push_back(next);
    }
    ++lane.keys[lane_key].count;
    lane.chunks.push_back({.lane_key = lane_key,
                           .element_count = place.element_count,
                           .sent_offset = place.sent_offset,
                           .received_offset = place.received_offset,
                           .sender = place.sender});
  }
  keys.push_back(added.get());
  owned_keys.push_back(std::move(added));
}

// Keys are removed from the end, so all numbers stay dense.
void Engine::Impl::RemoveKeys(KeyIndex first) {
  PHUB_CHECK(first.value < keys.size(), "key={} keys={}", first.value, keys.size());
  std::vector<RoundListener*> removed;
  for (std::size_t k = first.value; k < keys.size(); ++k) {
    PHUB_CHECK(!keys[k]->active && keys[k]->collective, "key={}", k);
    removed.push_back(keys[k]->listener);
  }
  for (Lane& lane : lanes) ShrinkLane(lane, first);
  keys.resize(first.value);
  owned_keys.resize(first.value);
  for (RoundListener* const each : removed) each->OnRemoved();
}

void Engine::Impl::ShrinkLane(Lane& lane, KeyIndex first) {
  std::size_t chunk_count = lane.chunks.size();
  while (!lane.keys.empty() && lane.keys.back().key >= first.value) {
    PHUB_CHECK(!lane.keys.back().queued, "key={}", lane.keys.back().key);
    chunk_count = lane.keys.back().first;
    lane.keys.pop_back();
  }
  if (chunk_count == lane.chunks.size()) return;
  lane.chunks.resize(chunk_count);
  // A later chunk may have the same number and ticket, and must be copied.
  for (Lane::SlotCopy& copy : lane.copies)
    if (copy.chunk.value >= chunk_count) copy = {};
  std::vector<transport::LandingSlot> landing(
      lane.landing.begin(), lane.landing.begin() + static_cast<std::ptrdiff_t>(chunk_count));
  lane.landing.swap(landing);
  if (lane.state == Lane::State::kOpen)
    transports[lane.transport_index]->SetLanding(lane.connection, lane.landing);
}

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
