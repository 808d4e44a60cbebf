#include "client/engine.h"

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "client/pull/receiver.h"
#include "client/push/ready_queue.h"
#include "client/push/sender.h"
#include "common/base/check.h"
#include "common/base/spsc_queue.h"

namespace phub::client {
namespace {

// Room for a push of every layer of a deep model at once; when full, submitters wait their turn.
constexpr std::size_t kCommandsMax = 1024;
// Bounds one RunOnce, so that lanes are polled between bursts of commands.
constexpr std::size_t kCommandsPerRun = 256;
constexpr std::size_t kCompletionsPerPoll = 64;

}  // namespace

const char* ToString(LaneFault fault) {
  switch (fault) {
    case LaneFault::kNone:
      return "none";
    case LaneFault::kUnexpectedKind:
      return "a message that only workers send";
    case LaneFault::kWrongJob:
      return "a message of another job or membership epoch";
    case LaneFault::kChunkRange:
      return "a message about a chunk that the lane does not have";
    case LaneFault::kSlotRange:
      return "a credit for a slot that the lane does not have";
    case LaneFault::kNotAsked:
      return "a reply to a chunk that is not under way";
    case LaneFault::kIteration:
      return "a reply of another iteration than the one under way";
    case LaneFault::kPayloadBytes:
      return "a reply of another size than the chunk's";
  }
  return "unknown";
}

struct Engine::State {
  State(const EngineConfig& config_in, const Clock& clock_in,
        std::span<transport::Transport* const> transports_in, EngineListener& listener_in)
      : config(config_in),
        clock(clock_in),
        transports(transports_in.begin(), transports_in.end()),
        listener(listener_in),
        commands(kCommandsMax),
        lanes(config.lane_count),
        lane_of_connection(transports.size()),
        sender(config, counters) {
    for (Lane& lane : lanes) lane.free_slots.reserve(config.slots_per_lane);
  }

  bool RunCommands();
  void Execute(const Command& command);
  void AttachLane(const Command& command);
  void AddKeys(const KeyBatch& batch);
  void AddKey(const KeyPlan& plan);
  void GrowLane(Lane& lane, std::size_t chunks_added, std::size_t keys_added);
  void Push(const Command& command);
  void Cancel(const Command& command);
  void Stop();

  bool PollTransport(std::size_t transport_index);
  void Take(std::size_t transport_index, const transport::Completion& completion);
  void TakeMessage(Lane& lane, const wire::MessageHeader& header);
  void TakeClosed(Lane& lane, const transport::Completion& completion);
  void CloseLane(Lane& lane);
  bool SendAll();

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
  // [transport][connection index]: the lane, which checks the generation itself.
  std::vector<std::vector<std::uint32_t>> lane_of_connection;
  EngineCounters counters;
  Sender sender;
  bool stopping = false;
  bool stopped = false;
  std::array<transport::Completion, kCompletionsPerPoll> completions;
};

Engine::Engine(const EngineConfig& config, const Clock& clock,
               std::span<transport::Transport* const> transports, EngineListener& listener)
    : state_(std::make_unique<State>(config, clock, transports, listener)) {}
Engine::~Engine() = default;

bool Engine::Submit(const Command& command) { return state_->commands.TryPush(command); }
bool Engine::CommandsEmpty() const { return state_->commands.Empty(); }
const EngineCounters& Engine::counters() const { return state_->counters; }
std::size_t Engine::free_slots(std::uint32_t lane) const {
  return state_->lanes[lane].free_slots.size();
}

bool Engine::RunOnce() {
  bool busy = state_->RunCommands();
  const TimeNs now = state_->clock.Now();
  for (std::size_t t = 0; t < state_->transports.size(); ++t) {
    state_->transports[t]->Tick(now);
    busy |= state_->PollTransport(t);
  }
  busy |= state_->SendAll();
  return busy;
}

// ---- Commands ----------------------------------------------------------------------------------

bool Engine::State::RunCommands() {
  std::size_t done = 0;
  Command command;
  while (done < kCommandsPerRun && commands.TryPop(command)) {
    Execute(command);
    ++done;
  }
  return done > 0;
}

void Engine::State::Execute(const Command& command) {
  switch (command.kind) {
    case Command::Kind::kNone:
      break;
    case Command::Kind::kAttachLane:
      AttachLane(command);
      break;
    case Command::Kind::kAddKeys:
      AddKeys(*command.batch);
      break;
    case Command::Kind::kPush:
      Push(command);
      break;
    case Command::Kind::kSetHyperParameters:
      key(command.key).wanted_values = command.hyper_parameters;
      break;
    case Command::Kind::kCancel:
      Cancel(command);
      break;
    case Command::Kind::kStop:
      Stop();
      break;
  }
}

void Engine::State::AttachLane(const Command& command) {
  PHUB_CHECK(command.lane < lanes.size(), "lane={}", command.lane);
  PHUB_CHECK(command.transport_index < transports.size(), "transport={}", command.transport_index);
  Lane& lane = lanes[command.lane];
  PHUB_CHECK(lane.state == Lane::State::kDetached, "lane={}", command.lane);
  lane.owned = command.connection;
  lane.transport_index = command.transport_index;
  lane.why = {.lane = command.lane, .connection = command.connection};
  ResetLane(lane, keys, config.slots_per_lane);
  if (!stopping)
    lane.connection = transports[command.transport_index]->Adopt(*command.connection, lane.landing);
  if (stopping || lane.connection == transport::ConnectionId{}) {
    lane.why.error = transport::TransportError::kLocalClosed;
    listener.OnLaneClosed(lane.why);
    return;
  }
  lane.state = Lane::State::kOpen;
  auto& table = lane_of_connection[command.transport_index];
  if (table.size() <= lane.connection.index) table.resize(lane.connection.index + 1, 0);
  table[lane.connection.index] = command.lane;
}

void Engine::State::AddKeys(const KeyBatch& batch) {
  std::vector<std::size_t> chunks_added(lanes.size(), 0);
  std::vector<std::size_t> keys_added(lanes.size(), 0);
  for (const KeyPlan& plan : batch.keys) {
    std::vector<bool> has_chunks(lanes.size(), false);
    for (const ChunkPlace& place : plan.layout.chunks) {
      PHUB_CHECK(place.lane < lanes.size(), "lane={}", place.lane);
      ++chunks_added[place.lane];
      has_chunks[place.lane] = true;
    }
    for (std::size_t l = 0; l < lanes.size(); ++l) keys_added[l] += has_chunks[l] ? 1 : 0;
  }
  for (std::size_t l = 0; l < lanes.size(); ++l) GrowLane(lanes[l], chunks_added[l], keys_added[l]);
  for (const KeyPlan& plan : batch.keys) AddKey(plan);
}

// Growing replaces the landing table under a connection that may be receiving.
void Engine::State::GrowLane(Lane& lane, std::size_t chunks_added, std::size_t keys_added) {
  if (chunks_added == 0) return;
  lane.chunks.reserve(lane.chunks.size() + chunks_added);
  lane.keys.reserve(lane.keys.size() + keys_added);
  lane.ready.reserve(lane.keys.capacity());
  std::vector<transport::LandingSlot> landing(lane.landing);
  landing.resize(lane.landing.size() + chunks_added);
  lane.landing.swap(landing);
  if (lane.state == Lane::State::kOpen)
    transports[lane.transport_index]->SetLanding(lane.connection, lane.landing);
}

void Engine::State::AddKey(const KeyPlan& plan) {
  PHUB_CHECK(plan.layout.key.value == keys.size(), "key={}", plan.layout.key.value);
  auto added = std::make_unique<EngineKey>();
  added->index = plan.layout.key;
  added->priority = plan.priority;
  added->listener = plan.listener;
  added->chunk_count = static_cast<std::uint32_t>(plan.layout.chunks.size());
  added->record_values = added->previous_values = added->wanted_values = plan.hyper_parameters;
  std::vector<std::uint32_t> lane_key_of(lanes.size(), UINT32_MAX);
  for (const ChunkPlace& place : plan.layout.chunks) {
    Lane& lane = lanes[place.lane];
    PHUB_CHECK(place.chunk.value == lane.chunks.size(), "chunk={}", place.chunk.value);
    std::uint32_t& lane_key = lane_key_of[place.lane];
    if (lane_key == UINT32_MAX) {
      lane_key = static_cast<std::uint32_t>(lane.keys.size());
      added->parts.push_back({.lane = place.lane, .lane_key = lane_key});
      lane.keys.push_back({.key = plan.layout.key.value, .first = place.chunk.value});
    }
    ++lane.keys[lane_key].count;
    lane.chunks.push_back(
        {.lane_key = lane_key, .bytes = place.bytes, .offset_bytes = place.offset_bytes});
  }
  keys.push_back(added.get());
  owned_keys.push_back(std::move(added));
}

void Engine::State::Push(const Command& command) {
  if (stopping) return;  // whoever stopped the engine tells the callers why
  EngineKey& pushed = key(command.key);
  PHUB_CHECK(!pushed.active, "key={} ticket={}", command.key.value, command.ticket);
  pushed.active = true;
  pushed.sent_any = false;
  pushed.chunks_left = pushed.chunk_count;
  pushed.ticket = command.ticket;
  pushed.operation = command.operation;
  pushed.root = command.root;
  pushed.gradients = command.gradients;
  pushed.parameters = command.parameters;
  pushed.previous_record = pushed.record;
  pushed.previous_values = pushed.record_values;
  if (!(pushed.wanted_values == pushed.record_values)) {
    ++pushed.record.value;
    pushed.record_values = pushed.wanted_values;
  }
  for (const EngineKey::Part& part : pushed.parts)
    StartLaneKey(lanes[part.lane], keys, part.lane_key);
}

void Engine::State::Cancel(const Command& command) {
  EngineKey& pushed = key(command.key);
  const bool withdrawn =
      !stopping && pushed.active && pushed.ticket == command.ticket && !pushed.sent_any;
  if (withdrawn) {
    for (const EngineKey::Part& part : pushed.parts) {
      Lane& lane = lanes[part.lane];
      const LaneKey& lane_key = lane.keys[part.lane_key];
      RemoveLaneKey(lane, keys, part.lane_key);
      for (std::uint32_t c = lane_key.first; c < lane_key.first + lane_key.count; ++c)
        lane.chunks[c].phase = LaneChunk::Phase::kIdle;
    }
    pushed.active = false;
    pushed.chunks_left = 0;
    pushed.record = pushed.previous_record;
    pushed.record_values = pushed.previous_values;
  }
  pushed.listener->OnCancelAnswered(command.ticket, withdrawn);
}

void Engine::State::Stop() {
  stopping = true;
  for (Lane& lane : lanes)
    if (lane.state == Lane::State::kOpen) CloseLane(lane);
}

// ---- Lanes -------------------------------------------------------------------------------------

bool Engine::State::PollTransport(std::size_t transport_index) {
  transport::Transport& transport = *transports[transport_index];
  const std::size_t count = transport.Poll(completions);
  for (std::size_t i = 0; i < count; ++i) Take(transport_index, completions[i]);
  if (count > 0) transport.Release({completions.data(), count});
  return count > 0;
}

void Engine::State::Take(std::size_t transport_index, const transport::Completion& completion) {
  const auto& table = lane_of_connection[transport_index];
  if (completion.connection.index >= table.size()) return;
  Lane& lane = lanes[table[completion.connection.index]];
  if (lane.state == Lane::State::kDetached || lane.transport_index != transport_index ||
      lane.connection != completion.connection)
    return;
  switch (completion.kind) {
    case transport::CompletionKind::kReceived:
      if (lane.state == Lane::State::kOpen) TakeMessage(lane, completion.message->header);
      break;
    case transport::CompletionKind::kSent:
      break;  // not asked for: a reply says that a gradient was sent
    case transport::CompletionKind::kClosed:
      TakeClosed(lane, completion);
      break;
  }
}

void Engine::State::TakeMessage(Lane& lane, const wire::MessageHeader& header) {
  const Received received = Receive(config, lane, keys, header, counters);
  if (received.fault != LaneFault::kNone) {
    lane.why.fault = received.fault;
    lane.why.chunk = header.chunk;
    lane.why.iteration = header.iteration;
    CloseLane(lane);
    return;
  }
  if (received.completed != nullptr)
    received.completed->listener->OnRoundComplete(received.completed->ticket,
                                                  received.completed->completed);
}

void Engine::State::CloseLane(Lane& lane) {
  lane.state = Lane::State::kClosing;
  transports[lane.transport_index]->Close(lane.connection);
}

void Engine::State::TakeClosed(Lane& lane, const transport::Completion& completion) {
  lane.why.error = completion.error;
  lane.why.protocol_error = completion.protocol_error;
  lane.state = Lane::State::kDetached;
  lane.connection = {};
  lane.owned = nullptr;
  listener.OnLaneClosed(lane.why);
}

bool Engine::State::SendAll() {
  if (stopping) {
    for (const Lane& lane : lanes)
      if (lane.state != Lane::State::kDetached) return false;
    if (std::exchange(stopped, true)) return false;
    listener.OnStopped();
    return true;
  }
  bool sent = false;
  for (Lane& lane : lanes)
    if (lane.state == Lane::State::kOpen)
      sent |= sender.Send(lane, keys, *transports[lane.transport_index]);
  return sent;
}

}  // namespace phub::client
