#include "client/push/sender.h"

#include <cstring>

#include "client/push/ready_queue.h"
#include "client/sums/lane_sums.h"
#include "common/base/check.h"

namespace phub::client {
namespace {

// The first chunk at or after `from` that is kReady, or the end of the lane key's range.
std::uint32_t NextReady(const Lane& lane, const LaneKey& lane_key, std::uint32_t from) {
  while (from < lane_key.end() && lane.chunks[from].phase != LaneChunk::Phase::kReady) ++from;
  return from;
}

// The daemon refuses to read or write unaligned elements, so their address is not sent.
bool IsAligned(const std::byte* data, numeric::ElementType type) {
  return reinterpret_cast<std::uintptr_t>(data) % numeric::ElementBytes(type) == 0;
}

// The chunks of a lane key are in order of their offsets, so the range from the first to the last
// one belongs to the caller's array: one lookup covers all of them. A gradient is copied to a slot
// if this end cannot write its memory (the daemon's shared parameters): the daemon refuses that.
// The reply may be written where the gradient is. By then the daemon has read the gradients of all
// ranks, and it ignores those that are pushed again. Chunks that other ranks send have no gradient
// here and need no slot. They are sent at once, so a full lane never waits for the header of
// another rank.
SendWay WayOf(const Lane& lane, const EngineKey& key, const LaneKey& lane_key,
              const transport::Transport& transport) {
  if (key.pulling) return SendWay::kPull;
  if (OthersSend(key, lane_key)) return SendWay::kInPlace;
  if (key.gradients == nullptr || !IsAligned(key.gradients, key.payload_type))
    return SendWay::kSlot;
  std::uint32_t covered = lane_key.end() - 1;  // at least the first chunk is
  while (key.pooled && PooledBytes(key, lane.chunks[covered]) == 0) --covered;
  const LaneChunk& last = lane.chunks[covered];
  const std::uint64_t begin = GradientOffset(key, lane.chunks[lane_key.first]);
  const std::uint64_t end = GradientOffset(key, last) + GradientBytes(key, last);
  const SharedAddress address =
      transport.AddressOf(lane.connection, key.gradients + begin, end - begin);
  if (address == SharedAddress{}) return SendWay::kSlot;
  const bool writable = transport.Resolve(lane.connection, address, end - begin) != nullptr;
  return writable ? SendWay::kInPlace : SendWay::kSlot;
}

// Whether every chunk that waits to be sent is announced.
bool AllAnnounced(const Lane& lane, const LaneKey& lane_key) {
  if (lane.sums == nullptr) return false;
  for (std::uint32_t c = lane_key.cursor; c < lane_key.end();
       c = NextReady(lane, lane_key, c + 1)) {
    if (!lane.sums->Announces(c)) return false;
  }
  return true;
}

// The chunk is of this rank's own part, which is sent from where it belongs: it is not written. In
// shared memory, the daemon does not write it either.
bool StaysInPlace(const EngineKey& key, const LaneKey& lane_key, const LaneChunk& chunk) {
  return key.operation == wire::RoundOperation::kMove && lane_key.sends &&
         key.gradients + GradientOffset(key, chunk) == key.parameters + ParameterOffset(key, chunk);
}

// Opens the landing slot of the reply. Returns the shared address of this rank's own parameters, if
// they have one, so that the daemon can write them directly.
SharedAddress OpenLanding(Lane& lane, const EngineKey& key, std::uint32_t index,
                          const transport::Transport& transport) {
  const LaneChunk& chunk = lane.chunks[index];
  const std::uint32_t bytes = ReplyBytes(key, lane.keys[chunk.lane_key], chunk);
  transport::LandingSlot& landing = lane.landing[index];
  if (bytes == 0) {  // other ranks receive it: this reply has no payload, but its slot must be open
    landing = {.data = lane.unwanted.data(), .bytes_max = 0};
    return {};
  }
  std::byte* const data = key.parameters + ParameterOffset(key, chunk);
  landing = {.data = data, .bytes_max = bytes, .read_only = key.parameters_shared};
  const SharedAddress address = transport.AddressOf(lane.connection, data, bytes);
  if (address == SharedAddress{} && StaysInPlace(key, lane.keys[chunk.lane_key], chunk)) {
    landing.data = lane.unwanted.data();
    return {};
  }
  if (!key.parameters_shared) return IsAligned(data, ReplyType(key)) ? address : SharedAddress{};
  if (address == SharedAddress{}) {
    // This rank reads the shared parameters, but this connection also sends them: discard them.
    landing = {.data = lane.unwanted.data(), .bytes_max = bytes};
  }
  return {};
}

}  // namespace

void StartLaneKey(Lane& lane, const EngineKey& key, std::uint32_t index) {
  LaneKey& lane_key = lane.keys[index];
  lane_key.order = key.order;
  for (std::uint32_t c = lane_key.first; c < lane_key.end(); ++c) {
    if (key.pooled && PooledBytes(key, lane.chunks[c]) == 0) break;  // in order of offset
    PHUB_CHECK(lane.chunks[c].phase == LaneChunk::Phase::kIdle, "chunk={}", c);
    lane.chunks[c].phase = LaneChunk::Phase::kReady;
    lane.chunks[c].sum = LaneChunk::Sum::kUnknown;
  }
}

void ResetLane(Lane& lane, std::uint32_t slot_count) {
  lane.free_slots.clear();
  for (std::uint32_t s = slot_count; s > 0; --s) lane.free_slots.push_back(SlotIndex{s - 1});
  lane.slots_at = {};
  lane.copies.assign(slot_count, {});
  lane.chunks_sent = 0;
  lane.pulls_under_way = 0;
  for (LaneChunk& chunk : lane.chunks) {
    chunk.inflight = kNoSlot;
    if (chunk.phase == LaneChunk::Phase::kSent) chunk.phase = LaneChunk::Phase::kReady;
  }
  for (transport::LandingSlot& slot : lane.landing) slot = {};
  for (auto& heaps : lane.ready)
    for (std::vector<ReadyKey>& heap : heaps) heap.clear();
  lane.overtakes = 0;
  for (LaneKey& lane_key : lane.keys) {
    lane_key.announced = HyperVersion{1};
    lane_key.queued = false;
  }
}

void QueueUnsent(Lane& lane, std::span<EngineKey* const> keys, std::uint32_t index,
                 const transport::Transport& transport) {
  LaneKey& lane_key = lane.keys[index];
  lane_key.cursor = NextReady(lane, lane_key, lane_key.first);
  if (lane_key.cursor == lane_key.end()) return;
  // Announcements need no slot.
  lane_key.way = AllAnnounced(lane, lane_key)
                     ? SendWay::kInPlace
                     : WayOf(lane, *keys[lane_key.key], lane_key, transport);
  QueueLaneKey(lane, index);
}

Sender::Sender(const EngineConfig& config, EngineCounters& counters)
    : config_(config), counters_(counters) {}

bool Sender::Send(Lane& lane, std::span<EngineKey* const> keys, transport::Transport& transport) {
  bool sent = false;
  while (const std::size_t count = Gather(lane, keys, transport)) {
    const std::size_t taken = transport.Post({requests_.data(), count});
    Account(lane, keys, taken);
    Undo(lane, taken, count);
    sent = sent || taken > 0;
    if (taken < count) break;  // the transport is full: poll first
  }
  return sent;
}

std::size_t Sender::Gather(Lane& lane, std::span<EngineKey* const> keys,
                           const transport::Transport& transport) {
  std::size_t count = 0;
  std::uint32_t index = 0;
  while (count < kBurst && FirstLaneKey(lane, index)) {
    LaneKey& lane_key = lane.keys[index];
    const EngineKey& key = *keys[lane_key.key];
    if (!key.pulling && lane_key.announced < key.hyper_version) {
      GatherHyperParameters(lane, key, index, count++);
      continue;
    }
    NoteChoice(lane, index);
    GatherChunk(lane, key, index, count++, transport);
    if (lane_key.cursor == lane_key.end()) PopLaneKey(lane, index);
  }
  return count;
}

transport::SendRequest& Sender::Begin(const Lane& lane, std::size_t at, wire::MessageKind kind) {
  transport::SendRequest& request = requests_[at];
  request = {};
  request.header.kind = kind;
  request.header.incarnation = config_.incarnation;
  request.header.membership_epoch = config_.membership_epoch;
  request.connections = {&lane.connection, 1};
  return request;
}

void Sender::GatherHyperParameters(Lane& lane, const EngineKey& key, std::uint32_t index,
                                   std::size_t at) {
  LaneKey& lane_key = lane.keys[index];
  Entry& entry = entries_[at];
  entry.sent = Sent::kHyperParameters;
  entry.lane_key = index;
  entry.announced_before = lane_key.announced;
  wire::EncodeHyperParameters(key.announced_values, entry.record_bytes);
  lane_key.announced = key.hyper_version;

  transport::SendRequest& request = Begin(lane, at, wire::MessageKind::kHyperParameters);
  request.header.key = key.index;
  request.header.hyper_version = key.hyper_version;
  request.header.payload_bytes = static_cast<std::uint32_t>(entry.record_bytes.size());
  request.payload = entry.record_bytes;
}

void Sender::GatherChunk(Lane& lane, const EngineKey& key, std::uint32_t index, std::size_t at,
                         const transport::Transport& transport) {
  LaneKey& lane_key = lane.keys[index];
  LaneChunk& chunk = lane.chunks[lane_key.cursor];
  Entry& entry = entries_[at];
  entry.sent = key.pulling ? Sent::kPull : Sent::kGradient;
  entry.announced = lane.sums != nullptr && lane.sums->Announces(lane_key.cursor);
  entry.again = entry.copied = entry.in_place = false;
  entry.lane_key = index;
  entry.chunk = lane_key.cursor;
  chunk.phase = LaneChunk::Phase::kSent;
  ++lane.chunks_sent;

  transport::SendRequest& request =
      Begin(lane, at, key.pulling ? wire::MessageKind::kPull : wire::MessageKind::kGradient);
  request.header.iteration = IterationOf(key, chunk);
  request.header.chunk = ChunkIndex{entry.chunk};
  request.header.key = key.index;
  request.header.reply_address = OpenLanding(lane, key, entry.chunk, transport);
  if (key.pulling) {
    request.header.type = key.parameter_type;
    ++lane.pulls_under_way;
  } else if (entry.announced) {
    FillAnnouncement(lane, key, at);
  } else {
    FillGradient(lane, key, chunk, at, transport);
  }
  lane_key.cursor = NextReady(lane, lane_key, entry.chunk + 1);
}

void Sender::FillAnnouncement(Lane& lane, const EngineKey& key, std::size_t at) {
  Entry& entry = entries_[at];
  transport::SendRequest& request = requests_[at];
  request.header.operation = key.operation;
  request.payload = lane.sums->Announce(entry.chunk, request.header, entry.record_bytes);
}

void Sender::FillGradient(Lane& lane, const EngineKey& key, LaneChunk& chunk, std::size_t at,
                          const transport::Transport& transport) {
  Entry& entry = entries_[at];
  transport::SendRequest& request = requests_[at];
  request.header.operation = key.operation;
  request.header.type = key.payload_type;
  request.header.hyper_version = key.hyper_version;
  request.header.root = key.root;
  if (key.operation == wire::RoundOperation::kMove) {
    request.header.version = wire::kMoveVersion;
    request.header.root = chunk.sender;
  }
  if (key.pooled) {
    const bool moves = key.operation == wire::RoundOperation::kPoolMove;
    request.header.version = moves ? wire::kPoolMoveVersion : wire::kPoolVersion;
    request.header.pool = key.pool;
  }
  if (key.skip) request.header.flags = wire::kFlagSkip;
  if (lane.keys[entry.lane_key].way == SendWay::kSlot) {
    lane.TakeSlot(chunk);
    request.header.slot = chunk.inflight;
  }
  if (key.gradients == nullptr || OthersSend(key, lane.keys[entry.lane_key])) return;
  request.payload = {key.gradients + GradientOffset(key, chunk), GradientBytes(key, chunk)};
  request.header.payload_bytes = static_cast<std::uint32_t>(request.payload.size());
  entry.in_place = chunk.inflight == kNoSlot;
  if (entry.in_place) return;
  std::byte* const slot = transport.PeerSlot(lane.connection, chunk.inflight);
  if (slot == nullptr) return;
  // Copy only once: if the transport was full, the slot still has the copy of this chunk.
  const Lane::SlotCopy copy{.chunk = ChunkIndex{entry.chunk}, .ticket = key.ticket};
  Lane::SlotCopy& there = lane.copies[chunk.inflight.value];
  if (there != copy) std::memcpy(slot, request.payload.data(), request.payload.size());
  there = copy;
  entry.copied = true;
  request.payload = {slot, request.payload.size()};
}

void Sender::Undo(Lane& lane, std::size_t taken, std::size_t count) {
  for (std::size_t at = count; at > taken; --at) {
    const Entry& entry = entries_[at - 1];
    LaneKey& lane_key = lane.keys[entry.lane_key];
    if (entry.sent == Sent::kHyperParameters) {
      lane_key.announced = entry.announced_before;
      continue;
    }
    LaneChunk& chunk = lane.chunks[entry.chunk];
    lane.landing[entry.chunk] = {};
    --lane.chunks_sent;
    if (entry.sent == Sent::kPull) --lane.pulls_under_way;
    if (chunk.inflight != kNoSlot) lane.ReturnSlot(chunk);
    chunk.phase = LaneChunk::Phase::kReady;
    lane_key.cursor = entry.chunk;
    QueueLaneKey(lane, entry.lane_key);
  }
}

void Sender::Account(Lane& lane, std::span<EngineKey* const> keys, std::size_t taken) {
  for (std::size_t at = 0; at < taken; ++at) {
    Entry& entry = entries_[at];
    keys[lane.keys[entry.lane_key].key]->sent_any = true;
    if (entry.sent == Sent::kGradient && lane.sums != nullptr)
      entry.again = !lane.sums->NoteSent(entry.chunk, entry.announced);
    switch (entry.sent) {
      case Sent::kHyperParameters: ++counters_.records_sent; break;
      case Sent::kPull: ++counters_.pulls_sent; break;
      case Sent::kGradient:
        if (entry.announced) {
          ++counters_.announcements_sent;
          break;
        }
        ++counters_.gradients_sent;
        counters_.gradients_copied += entry.copied ? 1 : 0;
        counters_.gradients_in_place += entry.in_place ? 1 : 0;
        break;
    }
  }
  if (config_.report_sent) ReportSent(lane, keys, taken);
}

void Sender::ReportSent(const Lane& lane, std::span<EngineKey* const> keys,
                        std::size_t taken) const {
  for (std::size_t at = 0; at < taken; ++at) {
    const Entry& entry = entries_[at];
    EngineKey& key = *keys[lane.keys[entry.lane_key].key];
    if (entry.sent == Sent::kHyperParameters || entry.again || key.chunks_unsent == 0) continue;
    const bool first = key.chunks_unsent == key.round_chunks;
    const bool last = --key.chunks_unsent == 0;
    if (first || last) key.listener->OnSent(last);
  }
}

}  // namespace phub::client
