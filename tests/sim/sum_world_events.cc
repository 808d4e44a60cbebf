// The events of a World: the network, the aggregator, control, and what may go wrong.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "tests/sim/sum_world.h"

namespace phub::aggregation::search {
namespace {

constexpr std::array<const char*, PHUB_PACKET_KINDS> kKinds = {
    "?", "PAYLOAD", "MISSING", "REFUSED", "SUM", "NACK", "PARAMETERS"};
constexpr std::array<const char*, PHUB_VERDICT_COUNT> kVerdicts = {
    "store",   "store, the last", "add",         "add, the last",
    "refused", "drop: repeated",  "drop: early", "drop: phase"};

}  // namespace

std::string TextOf(const phub_packet& packet) {
  std::string text = fmt::format("{} slot {} phase {} lease {}", kKinds[packet.kind], packet.slot,
                                 packet.phase, packet.lease);
  if (packet.worker != PHUB_EVERY_WORKER) text += fmt::format(" worker {}", packet.worker);
  return text;
}

// --- The network

void World::Add(const Datagram& datagram) {
  const auto key = [](const Datagram& one) {
    return std::tuple(one.to, one.packet.kind, one.packet.worker, one.packet.lease, one.packet.slot,
                      one.packet.phase, one.value);
  };
  flying_.insert(std::ranges::upper_bound(flying_, key(datagram), {}, key), datagram);
}

void World::Send(std::uint32_t index, const WorkerAction& action) {
  const std::uint32_t held = workers_[index].program.gradient[action.chunk.value];
  Datagram datagram{.to = kAtAggregator,
                    .value = GradientOf(index, action.chunk, held, action.block)};
  const Geometry& geometry = shape_.geometry;
  datagram.packet = {
      .lease = action.lease.value,
      .phase = geometry.PhaseOf(action.position),
      .payload_sum = datagram.value,
      .slot = static_cast<std::uint16_t>(geometry.SlotOf(action.position, action.block)),
      .count = 1,
      .kind = PHUB_PACKET_PAYLOAD,
      .worker = static_cast<std::uint8_t>(index),
      .exponent = 0,
      .next_exponent = 0};
  Add(datagram);
}

bool World::CanNack(std::uint32_t place) const {
  if (shape_.mistake == Mistake::kAskedOnce && asked_[place]) return false;
  return core_.AssignmentAt(place).has_value();
}

void World::SendNack(std::uint32_t place, std::uint32_t worker) {
  const CoreAction open = *core_.AssignmentAt(place);
  if (log_ != nullptr) Log(fmt::format("the core loop asks for position {}", open.position.value));
  asked_[place] = true;
  Datagram datagram{.to = kAtAggregator};
  for (std::uint32_t block = 0; block < shape_.geometry.blocks; ++block) {
    if (core_.IsMissing(open.position, block)) datagram.value |= 1u << block;
  }
  datagram.packet.lease = open.lease.value;
  datagram.packet.phase = shape_.geometry.PhaseOf(open.position);
  datagram.packet.slot = static_cast<std::uint16_t>(shape_.geometry.SlotOf(open.position, 0));
  datagram.packet.kind = PHUB_PACKET_NACK;
  datagram.packet.worker = PHUB_EVERY_WORKER;
  if (shape_.mistake != Mistake::kPublishedBitmaps) return Add(datagram);
  // There, workers have timers instead.
  datagram.packet.kind = PHUB_PACKET_MISSING;
  WorkerActions actions;
  for (std::uint32_t block = 0; block < shape_.geometry.blocks; ++block, ++datagram.packet.slot) {
    if ((datagram.value >> block & 1) != 0)
      workers_[worker].stream.Missing(datagram.packet, actions);
  }
  Perform(worker, actions);
}

// Nobody gets any without a stream: workers push then.
void World::SendParameters(std::uint32_t worker, ChunkIndex chunk, Iteration iteration) {
  if (core_.lease() == kNoLease) return;
  Datagram datagram{.to = worker, .value = chunk.value};
  const phub_parameters about = {.version = static_cast<std::uint32_t>(iteration.value),
                                 .chunk = static_cast<std::uint16_t>(chunk.value),
                                 .block = 0};
  datagram.packet.lease = core_.lease().value;
  datagram.packet.worker = static_cast<std::uint8_t>(worker);
  phub_packet_set_parameters(&datagram.packet, &about);
  if (shape_.slow_parameters) return Add(datagram);
  Deliver(datagram);
}

void World::Deliver(const Datagram& datagram) {
  if (log_ != nullptr) {
    const std::string to = datagram.to == kAtAggregator ? "aggregator"
                           : datagram.to == kAtCoreLoop ? "core loop"
                                                        : fmt::format("worker {}", datagram.to);
    Log(fmt::format("{} <- {}", to, TextOf(datagram.packet)));
  }
  if (datagram.to == kAtCoreLoop) return DeliverToCore(datagram);
  if (datagram.to != kAtAggregator) return DeliverToWorker(datagram);
  if (shape_.mistake == Mistake::kPublishedBitmaps) return DeliverToPublished(datagram);
  DeliverToAggregator(datagram);
}

void World::DeliverParameters(const Datagram& datagram) {
  WorkerStream& stream = workers_[datagram.to].stream;
  phub_parameters about{};
  phub_packet_get_parameters(&datagram.packet, &about);
  const ChunkIndex chunk{about.chunk};
  if (stream.lease().value != datagram.packet.lease || chunk.value >= stream.chunk_count()) return;
  if (!stream.AwaitsDatagrams(chunk)) return;
  const Iteration iteration = stream.IterationOf(chunk);
  if (iteration.value != about.version) {
    if (shape_.mistake == Mistake::kVersionNotChecked) Fail("parameters of another version");
    return;
  }
  if (log_ != nullptr) Log("  the worker takes them");
  Complete(datagram.to, chunk, iteration);
  RunProgram(datagram.to);
}

void World::DeliverToWorker(const Datagram& datagram) {
  if (datagram.packet.kind == PHUB_PACKET_PARAMETERS) return DeliverParameters(datagram);
  if (datagram.packet.kind == PHUB_PACKET_REFUSED) return;
  WorkerActions actions;
  workers_[datagram.to].stream.Missing(datagram.packet, actions);
  Perform(datagram.to, actions);
}

void World::DeliverToCore(const Datagram& datagram) {
  const std::uint32_t block = datagram.packet.slot % shape_.geometry.blocks;
  phub_packet packet = datagram.packet;
  if (shape_.mistake == Mistake::kSumOfAnyPhase)
    packet.phase = phases_[packet.slot / shape_.geometry.blocks];
  const std::optional<CoreAction> open = core_.AssignmentAt(packet.slot / shape_.geometry.blocks);
  CoreActions actions;
  const SumVerdict verdict = core_.Sum(packet, actions);
  if (verdict == SumVerdict::kRepeated && shape_.mistake == Mistake::kRepeatedSumFolded)
    accumulators_[open->chunk.value * shape_.geometry.blocks + block] += datagram.value;
  if (verdict == SumVerdict::kWrong) Fail("the core loop receives a sum of a wrong slot");
  if (verdict == SumVerdict::kFolded) {
    if (log_ != nullptr) Log("  the core loop folds it");
    accumulators_[actions.front().chunk.value * shape_.geometry.blocks + block] += datagram.value;
  }
  Perform(actions, /*summed=*/true);
}

void World::DeliverToAggregator(Datagram datagram) {
  phub_packet& packet = datagram.packet;
  if (shape_.mistake == Mistake::kLeaseNotChecked) packet.lease = aggregator_.lease;
  if (aggregator_.lease == 0 || packet.lease != aggregator_.lease) {
    if (log_ != nullptr) Log("  the aggregator drops it: lease");
    return;
  }
  if (packet.kind == PHUB_PACKET_NACK) return DeliverNack(datagram);
  phub_slot& slot = aggregator_.slots[packet.slot];
  if (packet.kind == PHUB_PACKET_PAYLOAD && shape_.mistake == Mistake::kOlderPhaseAdded &&
      packet.phase + 1 == slot.phase)
    packet.phase = slot.phase;
  const phub_verdict verdict = phub_slot_receive(&slot, &packet, shape_.workers);
  if (log_ != nullptr) Log(fmt::format("  the aggregator: {}", kVerdicts[verdict]));
  std::uint32_t& sum = aggregator_.values[packet.slot];
  std::array<std::uint8_t, 4> payload{};
  phub_store32(payload.data(), datagram.value);
  switch (verdict) {
    case PHUB_VERDICT_STORE:
    case PHUB_VERDICT_STORE_LAST: phub_slot_add(&sum, payload.data(), 1, 1); break;
    case PHUB_VERDICT_ADD:
    case PHUB_VERDICT_ADD_LAST: phub_slot_add(&sum, payload.data(), 1, 0); break;
    case PHUB_VERDICT_REPEATED:
      if (shape_.mistake == Mistake::kDuplicateAdded && slot.state == PHUB_SLOT_COLLECTING) {
        sum += datagram.value;
        slot.payload_sum += datagram.value;
      }
      break;
    case PHUB_VERDICT_REFUSED:
    case PHUB_VERDICT_EARLY: Fail("the aggregator refuses a packet of an honest worker"); break;
    default: break;
  }
  if (verdict == PHUB_VERDICT_STORE_LAST || verdict == PHUB_VERDICT_ADD_LAST) SendSum(packet);
}

void World::SendSum(const phub_packet& about) {
  Datagram out{.to = kAtCoreLoop, .value = aggregator_.values[about.slot]};
  phub_slot_sum(&aggregator_.slots[about.slot], &about, &out.packet);
  if (out.packet.payload_sum != out.value) Fail("the payload sum of a sum is wrong");
  Add(out);
}

// `value` has the blocks.
void World::DeliverNack(const Datagram& datagram) {
  for (std::uint32_t block = 0; block < shape_.geometry.blocks; ++block) {
    if ((datagram.value >> block & 1) == 0) continue;
    phub_packet about = datagram.packet;
    about.slot = static_cast<__u16>(about.slot + block);
    const phub_slot& slot = aggregator_.slots[about.slot];
    phub_nacked nacked = phub_slot_nacked(&slot, about.phase, shape_.workers);
    if (shape_.mistake == Mistake::kSumSentOnce) nacked.send_sum = 0;
    const bool is_empty = slot.phase != about.phase || slot.workers == 0;
    if (shape_.mistake == Mistake::kEmptySlotsContent && is_empty) nacked.missing = 0;
    if (log_ != nullptr)
      Log(fmt::format("  slot {}: {}", about.slot, nacked.send_sum != 0 ? "send the sum" : "ask"));
    if (nacked.send_sum != 0) SendSum(about);
    about.kind = PHUB_PACKET_MISSING;
    for (std::uint8_t worker = 0; worker < shape_.workers; ++worker) {
      about.worker = worker;
      if ((nacked.missing >> worker & 1) != 0) Add({.to = worker, .packet = about});
    }
  }
}

// SwitchML's switch, as published: the phase only chooses the set and is echoed.
void World::DeliverToPublished(const Datagram& datagram) {
  phub_packet packet = datagram.packet;
  if (aggregator_.lease == 0 || packet.lease != aggregator_.lease) return;
  Published& slot = aggregator_.published[packet.slot];
  const std::size_t set = packet.phase % 2;
  const std::uint32_t bit = 1u << packet.worker;
  const std::uint32_t before = slot.bitmap[set];
  slot.bitmap[set] |= bit;
  slot.bitmap[1 - set] &= ~bit;
  const bool again = (before & bit) != 0;
  if (!again) {
    slot.value[set] = before == 0 ? datagram.value : slot.value[set] + datagram.value;
    slot.left[set] = slot.left[set] == 0 ? shape_.workers - 1 : slot.left[set] - 1;
  }
  if (log_ != nullptr) Log(again ? "  the aggregator: seen" : "  the aggregator: add");
  if (slot.left[set] != 0) return;
  packet.kind = PHUB_PACKET_SUM;
  packet.worker = PHUB_EVERY_WORKER;
  Add({.to = kAtCoreLoop, .value = slot.value[set], .packet = packet});
}

// --- Events

void World::AppendEvents(std::vector<Event>& events) const {
  if (!error_.empty()) return;
  if (IsFinished()) {
    if (shape_.endings > 0) events.push_back({.kind = Event::Kind::kEndJob});
    return;
  }
  AppendCalmEvents(events);
  if (events.empty()) {
    AppendNacks(Event::Kind::kNack, events);
    AppendQuestions(Event::Kind::kAsk, events);
  }
  AppendTroubles(events);
}

void World::AppendCalmEvents(std::vector<Event>& events) const {
  for (std::uint8_t i = 0; i < flying_.size(); ++i)
    events.push_back({.kind = Event::Kind::kDeliver, .a = i});
  for (std::uint8_t i = 0; i < shape_.workers; ++i) {
    if (!workers_[i].to_core.empty()) events.push_back({.kind = Event::Kind::kToCore, .a = i});
    if (!workers_[i].from_core.empty()) events.push_back({.kind = Event::Kind::kFromCore, .a = i});
  }
  for (std::uint8_t i = 0; i < shape_.chunks; ++i) {
    if (core_.CanAssign(ChunkIndex{i})) events.push_back({.kind = Event::Kind::kAssign, .a = i});
  }
  if (CanAddAtCore()) events.push_back({.kind = Event::Kind::kAddAtCore});
  for (std::uint8_t i = 0; i < shape_.workers; ++i) {
    if (workers_[i].lives < lives_) events.push_back({.kind = Event::Kind::kAddAtWorker, .a = i});
  }
  if (control_ == Control::kUnaware) events.push_back({.kind = Event::Kind::kNotice});
  if (control_ == Control::kMustGrant) events.push_back({.kind = Event::Kind::kGrant});
}

// As in the product, the core loop removes a chunk once every rank has its parameters and does not
// push it any more, and is the first to have the chunk that gets the number next.
bool World::CanAddAtCore() const {
  if (!shape_.last_chunk_is_late || lives_ == shape_.iterations) return false;
  return std::ranges::all_of(workers_, [&](const Worker& worker) {
    return worker.lives == lives_ && worker.program.iterations.back() == lives_;
  });
}

void World::AddAtCore() {
  if (log_ != nullptr) Log("the core loop has a new last chunk");
  const ChunkIndex last{shape_.FirstChunks()};
  core_.RemoveChunks(last);
  core_.AddChunk(shape_.Blocks().back(), Iteration{lives_});
  ++lives_;
}

void World::AddAtWorker(std::uint32_t index) {
  if (log_ != nullptr) Log(fmt::format("worker {} has a new last chunk", index));
  Worker& worker = workers_[index];
  worker.stream.RemoveChunks(ChunkIndex{shape_.FirstChunks()});
  worker.stream.AddChunk(shape_.Blocks().back());
  ++worker.lives;
  RunProgram(index);
}

void World::AppendNacks(Event::Kind kind, std::vector<Event>& events) const {
  for (std::uint8_t place = 0; place < shape_.geometry.positions; ++place) {
    const std::uint32_t senders = shape_.mistake == Mistake::kPublishedBitmaps ? shape_.workers : 1;
    for (std::uint8_t worker = 0; CanNack(place) && worker < senders; ++worker)
      events.push_back({.kind = kind, .a = place, .b = worker});
  }
}

void World::AppendQuestions(Event::Kind kind, std::vector<Event>& events) const {
  for (std::uint8_t i = 0; i < shape_.workers; ++i) {
    const WorkerStream& stream = workers_[i].stream;
    for (std::uint8_t chunk = 0; chunk < stream.chunk_count(); ++chunk) {
      if (stream.HasPosition(ChunkIndex{chunk}))
        events.push_back({.kind = kind, .a = i, .b = chunk});
    }
  }
}

void World::Ask(std::uint32_t worker, ChunkIndex chunk, bool over_tcp) {
  Message message{.kind = over_tcp ? Message::Kind::kMissingTcp : Message::Kind::kMissing,
                  .chunk = chunk,
                  .iteration = workers_[worker].stream.IterationOf(chunk)};
  workers_[worker].to_core.push_back(std::move(message));
}

void World::AppendTroubles(std::vector<Event>& events) const {
  const auto add = [&](Event::Kind kind, std::size_t count) {
    for (std::uint8_t i = 0; i < count; ++i) events.push_back({.kind = kind, .a = i});
  };
  if (shape_.losses > 0) add(Event::Kind::kLose, flying_.size());
  if (shape_.duplicates > 0) add(Event::Kind::kDeliverAndCopy, flying_.size());
  add(Event::Kind::kDeliverLate, late_.size());
  if (shape_.early_nacks > 0) AppendNacks(Event::Kind::kNackEarly, events);
  if (shape_.give_ups > 0) AppendQuestions(Event::Kind::kGiveUp, events);
  if (shape_.lost_lanes > 0) add(Event::Kind::kLoseLane, shape_.workers);
  if (shape_.replacements > 0) add(Event::Kind::kReplace, shape_.workers);
  if (shape_.restarts > 0) add(Event::Kind::kRestart, 1);
  if (shape_.endings > 0) add(Event::Kind::kEndJob, 1);
}

void World::Apply(const Event& event, std::string* log) {
  log_ = log;
  const auto take = [](std::vector<Datagram>& from, std::uint8_t index) {
    const Datagram datagram = from[index];
    from.erase(from.begin() + index);
    return datagram;
  };
  switch (event.kind) {
    case Event::Kind::kDeliver: Deliver(take(flying_, event.a)); break;
    case Event::Kind::kDeliverAndCopy:
      if (log_ != nullptr) Log("a datagram that the network has copied:");
      --shape_.duplicates;
      late_.push_back(flying_[event.a]);
      Deliver(take(flying_, event.a));
      break;
    case Event::Kind::kDeliverLate:
      if (log_ != nullptr) Log("a late copy:");
      Deliver(take(late_, event.a));
      break;
    case Event::Kind::kToCore: ReceiveAtCore(event.a); break;
    case Event::Kind::kFromCore: ReceiveFromCore(event.a); break;
    case Event::Kind::kAssign: {
      if (log_ != nullptr) Log(fmt::format("the core loop assigns chunk {}", event.a));
      CoreActions actions;
      core_.Assign(ChunkIndex{event.a}, actions);
      Perform(actions);
      break;
    }
    case Event::Kind::kNackEarly: --shape_.early_nacks; [[fallthrough]];
    case Event::Kind::kNack: SendNack(event.a, event.b); break;
    case Event::Kind::kAsk: Ask(event.a, ChunkIndex{event.b}, /*over_tcp=*/false); break;
    case Event::Kind::kGrant: Grant(); break;
    case Event::Kind::kAddAtCore: AddAtCore(); break;
    case Event::Kind::kAddAtWorker: AddAtWorker(event.a); break;
    default: ApplyTrouble(event);
  }
  for (std::uint32_t i = 0; prompt_lanes_ && i < shape_.workers; ++i) {
    while (!workers_[i].to_core.empty() && error_.empty()) ReceiveAtCore(i);
  }
  log_ = nullptr;
}

}  // namespace phub::aggregation::search
