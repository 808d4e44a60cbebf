#include "client/engine.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>
#include <vector>

#include "client/engine_impl.h"

namespace phub::client {
const char* ToString(LaneFault fault) {
  switch (fault) {
    case LaneFault::kNone: return "none";
    case LaneFault::kUnexpectedKind: return "a message that only workers send";
    case LaneFault::kWrongJob: return "a message for another job or membership epoch";
    case LaneFault::kChunkRange: return "a message for a chunk that the lane does not have";
    case LaneFault::kSlotRange: return "a credit for a slot that the lane does not have";
    case LaneFault::kNotAsked: return "a reply for a chunk that is not in flight";
    case LaneFault::kIteration: return "a reply for an iteration that is not in flight";
    case LaneFault::kType: return "a reply whose element type is not the key's";
    case LaneFault::kPayloadBytes: return "a reply whose size is not the chunk's";
    case LaneFault::kStream: return "terms of a stream of sums that do not fit the job";
    case LaneFault::kNotDecided: return "a reply for an iteration that this worker has not decided";
  }
  return "unknown";
}

Engine::Impl::Impl(const EngineConfig& config_in, const Clock& clock_in,
                   std::span<transport::Transport* const> transports_in,
                   EngineListener& listener_in)
    : config(config_in),
      clock(clock_in),
      transports(transports_in.begin(), transports_in.end()),
      listener(listener_in),
      commands(kCommandsMax),
      lanes(config.lane_count),
      lane_of_connection(transports.size()),
      timer(config.liveness_timeout),
      silences(std::make_unique<std::atomic<DurationNs>[]>(config.lane_count)),
      sender(config, counters),
      gate(config.restart),
      decider(config, counters) {
  for (Lane& lane : lanes) {
    lane.free_slots.reserve(config.slots_per_lane);
    lane.yielding_slots = config.yielding_slots;
    lane.unwanted = MappedMemory::Allocate(kChunkBytesMax, MappedMemory::Backing::kOnTouch);
  }
  for (std::uint32_t l = 0; l < config.lane_count; ++l) silences[l] = kNotWatched;
  MakeSums();
}

Engine::Engine(const EngineConfig& config, const Clock& clock,
               std::span<transport::Transport* const> transports, EngineListener& listener)
    : impl_(std::make_unique<Impl>(config, clock, transports, listener)) {}
Engine::~Engine() = default;

bool Engine::Submit(const Command& command) { return impl_->commands.TryPush(command); }
bool Engine::CommandsEmpty() const { return impl_->commands.Empty(); }
TimeNs Engine::NextTimer() const {
  TimeNs next = impl_->timer.next();
  for (const auto& sums : impl_->sums) next = std::min(next, sums->deadline());
  return next;
}
DurationNs Engine::Silence(std::uint32_t lane) const {
  return impl_->silences[lane].load(std::memory_order_relaxed);
}
bool Engine::has_memory() const {
  return std::all_of(impl_->lanes.begin(), impl_->lanes.end(),
                     [](const Lane& lane) { return static_cast<bool>(lane.unwanted); });
}
const EngineCounters& Engine::counters() const { return impl_->counters; }
std::uint64_t Engine::job_iteration() const { return impl_->gate.iteration(); }
IterationDecider::Outcome Engine::outcome() const { return impl_->decider.outcome(); }
std::size_t Engine::free_slots(std::uint32_t lane) const {
  return impl_->lanes[lane].free_slots.size();
}

bool Engine::RunOnce() {
  bool busy = impl_->RunCommands();
  const TimeNs now = impl_->clock.Now();
  for (std::size_t t = 0; t < impl_->transports.size(); ++t) {
    impl_->transports[t]->Tick(now);
    busy |= impl_->PollTransport(t);
  }
  busy |= impl_->PollSums(now);
  if (impl_->timer.IsDue(now)) impl_->LookAtLanes(now);
  busy |= impl_->SendAll();
  return busy;
}

// Number of messages to gather before the engine wakes:
// - all chunks in flight, at most kAwaitedMax, since mostly the last one completes a round;
// - if slots or pulls have run out, a quarter of them: the daemon works on the others meanwhile;
// - with apply_iteration 1, since the engine must decide the iteration before replies arrive.
void Engine::AwaitReplies() {
  constexpr std::uint32_t kAwaitedMax = 64;
  const auto waits = [](const Lane& lane, SendWay way) {
    return std::ranges::any_of(lane.ready, [way](const auto& heaps) {
      return !heaps[static_cast<std::size_t>(way)].empty();
    });
  };
  for (const Lane& lane : impl_->lanes) {
    if (lane.state != Lane::State::kOpen) continue;
    std::uint32_t awaited_max = impl_->config.apply_iteration ? 1 : kAwaitedMax;
    if (waits(lane, SendWay::kPull)) awaited_max = std::min(awaited_max, kPullsPerLaneMax / 4);
    if (waits(lane, SendWay::kSlot)) {
      awaited_max = std::min(awaited_max, std::max(impl_->config.slots_per_lane / 4, 1u));
    }
    impl_->transports[lane.transport_index]->Await(lane.connection,
                                                   std::clamp(lane.chunks_sent, 1u, awaited_max));
  }
}

// ---- Commands ----------------------------------------------------------------------------------

bool Engine::Impl::RunCommands() {
  std::size_t done = 0;
  Command command;
  while (done < kCommandsPerRun && commands.TryPop(command)) {
    Execute(command);
    ++done;
  }
  return done > 0;
}

void Engine::Impl::Execute(const Command& command) {
  switch (command.kind) {
    case Command::Kind::kNone: break;
    case Command::Kind::kAttachLane: AttachLane(command); break;
    case Command::Kind::kAddKeys: AddKeys(*command.batch); break;
    case Command::Kind::kRemoveKeys: RemoveKeys(command); break;
    case Command::Kind::kPush: Push(command); break;
    case Command::Kind::kResume: Resume(command); break;
    case Command::Kind::kSetHyperParameters:
      key(command.key).wanted_values = command.hyper_parameters;
      break;
    case Command::Kind::kCancel: Cancel(command); break;
    case Command::Kind::kCloseSilentLane: CloseSilentLane(lanes[command.lane]); break;
    case Command::Kind::kStop: Stop(); break;
  }
}

void Engine::Impl::AttachLane(const Command& command) {
  PHUB_CHECK(command.lane < lanes.size(), "lane={}", command.lane);
  PHUB_CHECK(command.transport_index < transports.size(), "transport={}", command.transport_index);
  Lane& lane = lanes[command.lane];
  PHUB_CHECK(lane.state == Lane::State::kDetached, "lane={}", command.lane);
  lane.owned = command.connection;
  lane.transport_index = command.transport_index;
  lane.why = {.lane = command.lane, .connection = command.connection};
  ResetLane(lane, config.slots_per_lane);
  if (!stopping) {
    errno = 0;  // a transport that cannot watch the connection leaves the call's error
    lane.connection = transports[command.transport_index]->Adopt(*command.connection, lane.landing);
    if (lane.connection == transport::ConnectionId{}) lane.why.shortage = errno;
  }
  if (stopping || lane.connection == transport::ConnectionId{}) {
    lane.why.error = transport::TransportError::kLocalClosed;
    listener.OnLaneClosed(lane.why);
    return;
  }
  lane.state = Lane::State::kOpen;
  lane.owned->silence_meter().Begin(transports[lane.transport_index]->ActivityOf(lane.connection));
  decider.OnAttached(lane);
  auto& table = lane_of_connection[command.transport_index];
  if (table.size() <= lane.connection.index) table.resize(lane.connection.index + 1, 0);
  table[lane.connection.index] = command.lane;
  for (std::uint32_t k = 0; k < lane.keys.size(); ++k)
    QueueUnsent(lane, keys, k, *transports[lane.transport_index]);
}

void Engine::Impl::Stop() {
  stopping = true;
  for (Lane& lane : lanes)
    if (lane.state == Lane::State::kOpen) CloseLane(lane);
}

// ---- Lanes -------------------------------------------------------------------------------------

bool Engine::Impl::PollTransport(std::size_t transport_index) {
  transport::Transport& transport = *transports[transport_index];
  const std::size_t count = transport.Poll(completions);
  for (std::size_t i = 0; i < count; ++i) Take(transport_index, completions[i]);
  if (count > 0) transport.Release({completions.data(), count});
  return count > 0;
}

void Engine::Impl::Take(std::size_t transport_index, const transport::Completion& completion) {
  const auto& table = lane_of_connection[transport_index];
  if (completion.connection.index >= table.size()) return;
  Lane& lane = lanes[table[completion.connection.index]];
  if (lane.state == Lane::State::kDetached || lane.transport_index != transport_index ||
      lane.connection != completion.connection)
    return;
  switch (completion.kind) {
    case transport::CompletionKind::kReceived:
      if (lane.state == Lane::State::kOpen) TakeMessage(lane, *completion.message);
      break;
    case transport::CompletionKind::kSent:
      break;  // never requested: the reply shows that the gradient was sent
    case transport::CompletionKind::kClosed: TakeClosed(lane, completion); break;
  }
}

void Engine::Impl::TakeMessage(Lane& lane, const transport::ReceivedMessage& message) {
  const wire::MessageHeader& header = message.header;
  if (header.kind == wire::MessageKind::kKeepAlive) return;
  const Received received = IsOfStream(header.kind) ? TakeStreamMessage(lane, message)
                                                    : Receive(config, lane, keys, header, counters);
  if (received.fault != LaneFault::kNone) {
    lane.why.fault = received.fault;
    lane.why.chunk = header.chunk;
    lane.why.iteration = header.iteration;
    CloseLane(lane);
    return;
  }
  if (received.summed) decider.OnSummed(lanes);
  if (received.completed != nullptr) CompleteRound(*received.completed);
}

void Engine::Impl::CloseLane(Lane& lane) {
  lane.state = Lane::State::kClosing;
  silences[lane.why.lane].store(kNotWatched, std::memory_order_relaxed);
  transports[lane.transport_index]->Close(lane.connection);
}

void Engine::Impl::CloseSilentLane(Lane& lane) {
  if (lane.state != Lane::State::kOpen) return;
  lane.why.silence = lane.owned->silence_meter().silence();
  CloseLane(lane);
}

// Measures how long the daemon has been silent on each lane, and shows it that this worker lives.
void Engine::Impl::LookAtLanes(TimeNs now) {
  const DurationNs step = timer.Take(now);
  const bool keep_alive = timer.TakeKeepAlive(now);
  for (std::uint32_t l = 0; l < config.lane_count; ++l) {
    const Lane& lane = lanes[l];
    if (lane.state != Lane::State::kOpen || !lane.owned->keeps_alive()) continue;
    transport::Transport& transport = *transports[lane.transport_index];
    transport::SilenceMeter& meter = lane.owned->silence_meter();
    meter.Look(transport.ActivityOf(lane.connection), step);
    silences[l].store(meter.silence(), std::memory_order_relaxed);
    if (keep_alive && meter.silence() <= timer.echo_limit())
      transport.SendKeepAlive(lane.connection);
  }
}

void Engine::Impl::TakeClosed(Lane& lane, const transport::Completion& completion) {
  lane.why.error = completion.error;
  lane.why.protocol_error = completion.protocol_error;
  silences[lane.why.lane].store(kNotWatched, std::memory_order_relaxed);
  lane.state = Lane::State::kDetached;
  lane.connection = {};
  lane.owned = nullptr;
  listener.OnLaneClosed(lane.why);
}

bool Engine::Impl::SendAll() {
  if (stopping) {
    for (const Lane& lane : lanes)
      if (lane.state != Lane::State::kDetached) return false;
    if (std::exchange(stopped, true)) return false;
    listener.OnStopped();
    return true;
  }
  bool sent = false;
  for (Lane& lane : lanes) {
    if (lane.state != Lane::State::kOpen) continue;
    transport::Transport& transport = *transports[lane.transport_index];
    sent |= decider.Send(lane, transport);
    sent |= sender.Send(lane, keys, transport);
  }
  return sent;
}

}  // namespace phub::client
