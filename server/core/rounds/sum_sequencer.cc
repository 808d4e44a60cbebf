#include "server/core/rounds/sum_sequencer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "common/aggregation/fixed_point.h"
#include "common/base/check.h"
#include "server/core/on_core_loop.h"
#include "server/core/reply/bits.h"
#include "server/core/reply/datagrams.h"
#include "server/core/rounds/departed.h"

namespace phub::server {
namespace {

using aggregation::CoreAction;
using aggregation::LeaseNumber;

std::span<const std::byte> InlineOf(const transport::ReceivedMessage& message) {
  return std::span(message.inline_payload).first(message.header.payload_bytes);
}

std::span<const std::uint8_t> ExponentsOf(const transport::ReceivedMessage& message) {
  const std::span<const std::byte> bytes = InlineOf(message);
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

// A stream is open, and its sums are needed.
bool IsOpen(const JobShard& shard) {
  return shard.live() && shard.sums != nullptr &&
         shard.sums->stream.lease() != aggregation::kNoLease;
}

// The first announcement makes the round what it is, as the first push does.
void BeginRound(Chunk& chunk, Rank rank, const wire::MessageHeader& header, TimeNs now) {
  chunk.first_rank = rank;
  chunk.hyper_version = header.hyper_version;
  chunk.operation = header.operation;
  chunk.payload_type = header.type;
  chunk.root = {};
  chunk.round_since = now;
  chunk.skip_asked = false;
}

}  // namespace

SumSequencer::SumSequencer(RoundStages& stages)
    : stages_(stages),
      on_sum_([this](const aggregation::CoreActions& actions,
                     std::span<const std::int32_t> integers,
                     std::uint8_t /*exponent*/) { OnSum(actions, integers); }) {}

void SumSequencer::Open(JobShard& shard, const phub_lease& lease) {
  PHUB_ON_CORE_LOOP();
  if (!shard.live()) return;
  ShardSums& sums = *shard.sums;
  PHUB_CHECK(sums.port != nullptr);
  sums.lease = lease;
  sums.port->Open(lease);
  sums.was_open = true;
  sums.stream.Open(LeaseNumber{lease.number}, sums.actions);
  Perform(shard);
}

void SumSequencer::Close(JobShard& shard) {
  PHUB_ON_CORE_LOOP();
  if (shard.sums == nullptr || !shard.live()) return;
  ShardSums& sums = *shard.sums;
  while (sums.first_waiting != kNoChunk) {
    ShardSums::Chunk& waiting = sums.chunks[sums.first_waiting];
    sums.first_waiting = std::exchange(waiting.next, kNoChunk);
    waiting.is_listed = false;
  }
  sums.stream.Close(sums.actions);
  sums.open_count = 0;
  sums.silent_since.Set(0);
  Perform(shard);
}

void SumSequencer::OnAnnounce(JobShard& shard, Rank rank, Chunk& chunk,
                              const transport::ReceivedMessage& message) {
  PHUB_ON_CORE_LOOP();
  const wire::MessageHeader& header = message.header;
  ShardSums& sums = *shard.sums;
  ShardSums::Chunk& of_chunk = sums.chunks[chunk.index.value];
  // Again, on a new lane; the round is whole and waits for its turn.
  if (of_chunk.is_streamed) return;
  const bool again = sums.HasAnnounced(chunk.index, rank);
  const bool begins = !HasBegun(shard, chunk);
  const std::span<const std::uint8_t> exponents = ExponentsOf(message);
  stages_.loop.counters.Add(CoreCounter::announcements);
  const bool honest = sums.stream.Announce(rank, LeaseNumber{header.slot.value}, chunk.index,
                                           header.iteration, exponents, sums.actions);
  PHUB_CHECK(honest, "chunk={} rank={}", chunk.index.value, rank.value);  // Judge() has looked
  const bool counts = sums.HasAnnounced(chunk.index, rank);
  if (counts && !again) {
    if (begins) {
      BeginRound(chunk, rank, header, stages_.loop.now);
      of_chunk.not_finite = Rank::Max();
      of_chunk.not_finite_count = 0;
    }
    of_chunk.last = rank;
    of_chunk.gathered_at = stages_.loop.now;
    const auto announced =
        static_cast<std::uint32_t>(std::popcount(sums.stream.Announced(chunk.index)));
    if (announced + 1 == shard.config.world_size) chunk.last_awaited_since = stages_.loop.now;
    if (std::ranges::find(exponents, aggregation::kNotFinite) != exponents.end()) {
      ++of_chunk.not_finite_count;
      if (of_chunk.not_finite == Rank::Max()) of_chunk.not_finite = rank;
    }
  }
  Perform(shard);
  if (counts) departed::FaultIfNeeded(stages_.outbox, shard, chunk, rank);
}

void SumSequencer::OnPushed(JobShard& shard, const Chunk& chunk) {
  if (shard.sums == nullptr || !shard.sums->Has(chunk.index)) return;
  shard.sums->stream.BeginOverTcp(chunk.index, shard.sums->actions);
  Perform(shard);
}

void SumSequencer::OnMissing(JobShard& shard, Rank rank, const Chunk& chunk,
                             const transport::ReceivedMessage& message) {
  // The rank learns that there is no stream, and pushes.
  if (shard.sums->stream.lease() == aggregation::kNoLease) return;
  const bool all = message.header.kind != wire::MessageKind::kMissing;
  if (!all && message.header.payload_bytes == 0) {
    PostUseTcp(shard, rank, chunk.index, chunk.applied);  // if there is no room, it asks again
    return;
  }
  const std::uint64_t bytes = reply::SendDatagramsAgain(
      shard, chunk, rank, all ? std::span<const std::byte>() : InlineOf(message),
      stages_.loop.counters);
  stages_.turns.ChargeWork(shard, bytes);
}

void SumSequencer::OnPublished(JobShard& shard, const Chunk& chunk, CoreCounters& counters) {
  if (shard.sums == nullptr || !shard.sums->Has(chunk.index)) return;
  ShardSums::Chunk& of_chunk = shard.sums->chunks[chunk.index.value];
  if (std::exchange(of_chunk.is_streamed, false)) {
    if (of_chunk.lease == shard.sums->stream.lease()) reply::SendDatagrams(shard, chunk, counters);
    return;
  }
  // A rank that was still to be asked has pushed it on a new lane.
  shard.sums->asks -= static_cast<std::uint32_t>(std::popcount(std::exchange(of_chunk.ask, 0)));
  shard.sums->stream.FinishOverTcp(chunk.index);
}

// --- Sums

bool SumSequencer::Receive(JobShard& shard) {
  // Datagrams of a closed stream or a job that has failed are read, too: they wake the loop.
  if (shard.sums == nullptr || !shard.sums->was_open) return false;
  receiving_ = &shard;
  whole_count_ = 0;
  const std::uint64_t before = stages_.loop.counters.Get(CoreCounter::sum_blocks);
  const bool received = shard.sums->port->Receive(stages_.loop.now, on_sum_);
  if (stages_.loop.counters.Get(CoreCounter::sum_blocks) != before) NoteProgress(*shard.sums);
  receiving_ = nullptr;
  if (const std::uint64_t refused = shard.sums->port->refused(); refused != shard.sums->refused) {
    stages_.loop.counters.Add(CoreCounter::sum_datagrams_refused, refused - shard.sums->refused);
    shard.sums->refused = refused;
  }
  return received;
}

void SumSequencer::AskAgain(JobShard& shard) {
  if (!IsOpen(shard)) return;
  const std::uint32_t asked = shard.sums->port->AskAgain(stages_.loop.now);
  if (asked != 0) stages_.loop.counters.Add(CoreCounter::sum_nacks, asked);
}

TimeNs SumSequencer::next() const {
  TimeNs next = std::numeric_limits<TimeNs>::max();
  for (const JobShard* const shard : stages_.loop.shards) {
    if (IsOpen(*shard)) next = std::min(next, shard->sums->port->deadline());
  }
  return next;
}

void SumSequencer::NoteProgress(ShardSums& sums) {
  const TimeNs since = sums.open_count == 0 ? 0 : stages_.loop.now;
  sums.silent_since.Set(static_cast<std::uint64_t>(since));
}

void SumSequencer::OnSum(const aggregation::CoreActions& actions,
                         std::span<const std::int32_t> integers) {
  JobShard& shard = *receiving_;
  if (!shard.live()) return;
  for (const CoreAction& action : actions) {
    Chunk& chunk = *shard.chunks()[action.chunk.value];
    switch (action.kind) {
      case CoreAction::Kind::kFold: Fold(chunk, action.block, integers); break;
      case CoreAction::Kind::kComplete: Complete(chunk); break;
      default: break;
    }
  }
}

void SumSequencer::Fold(Chunk& chunk, std::uint32_t block, std::span<const std::int32_t> integers) {
  JobShard& shard = *receiving_;
  const std::uint32_t first = block * shard.sums->block;
  const std::uint32_t count = std::min(shard.sums->block, chunk.element_count - first);
  if (integers.size() != count) {
    // The aggregator adds only blocks of equal sizes, so every rank has sent this one.
    stages_.outbox.Fault({.code = FaultCode::kPayloadSize,
                          .source = chunk.first_rank,
                          .key = chunk.key->key,
                          .iteration = Iteration{chunk.applied.value + 1},
                          .shard = &shard});
    return;
  }
  stages_.turns.ChargeIngress(shard, integers.size_bytes());
  stages_.loop.counters.Add(CoreCounter::sum_blocks);
  stages_.loop.counters.Add(CoreCounter::sum_block_bytes, integers.size_bytes());
  std::memcpy(chunk.accumulator + std::size_t{first} * sizeof(float), integers.data(),
              integers.size_bytes());
}

// The round is whole. From here on it is as if all ranks had been folded.
void SumSequencer::Complete(Chunk& chunk) {
  JobShard& shard = *receiving_;
  ShardSums::Chunk& of_chunk = shard.sums->chunks[chunk.index.value];
  PHUB_CHECK(chunk.arrived_count() == 0, "chunk={}", chunk.index.value);
  chunk.folded_count = shard.config.world_size;
  of_chunk.is_streamed = true;
  of_chunk.lease = shard.sums->stream.lease();
  --shard.sums->open_count;
  stages_.loop.counters.Add(CoreCounter::rounds_streamed);
  stages_.CountRound(shard, of_chunk.last, chunk, of_chunk.gathered_at);
  PHUB_CHECK(whole_count_ < whole_.size());
  whole_[whole_count_++] = chunk.index;
}

Chunk* SumSequencer::TakeWhole(JobShard& shard) {
  if (whole_count_ == 0 || !shard.live()) return nullptr;
  return shard.chunks()[whole_[--whole_count_].value];
}

// --- Positions

void SumSequencer::Await(ShardSums& sums, ChunkIndex chunk) {
  ShardSums::Chunk& waiting = sums.chunks[chunk.value];
  if (waiting.is_listed) return;
  waiting.is_listed = true;
  waiting.next = kNoChunk;
  if (sums.first_waiting == kNoChunk) {
    sums.first_waiting = chunk.value;
  } else {
    sums.chunks[sums.last_waiting].next = chunk.value;
  }
  sums.last_waiting = chunk.value;
}

void SumSequencer::AssignWaiting(JobShard& shard) {
  ShardSums& sums = *shard.sums;
  if (!shard.live()) return;
  bool assigned = false;
  while (sums.first_waiting != kNoChunk && sums.stream.CanAssign(ChunkIndex{sums.first_waiting})) {
    const ChunkIndex chunk{sums.first_waiting};
    ShardSums::Chunk& waiting = sums.chunks[chunk.value];
    sums.first_waiting = std::exchange(waiting.next, kNoChunk);
    waiting.is_listed = false;
    sums.stream.Assign(chunk, sums.actions);
    const aggregation::Position position = sums.actions.back().position;
    sums.actions.clear();
    sums.port->NoteAssigned(position, stages_.loop.now);
    const std::uint64_t bit = std::uint64_t{1} << sums.geometry.PlaceOf(position);
    for (ShardSums::Lane& lane : sums.lanes) lane.positions |= bit;
    if (sums.open_count++ == 0) NoteProgress(sums);
    assigned = true;
  }
  if (assigned) Flush(shard);
}

// --- Messages to lanes

// Performs sums.actions, and clears them. Sums have their own function.
void SumSequencer::Perform(JobShard& shard) {
  ShardSums& sums = *shard.sums;
  bool tells = false;
  for (const CoreAction& action : sums.actions) {
    switch (action.kind) {
      case CoreAction::Kind::kStreamIs:
        for (ShardSums::Lane& lane : sums.lanes) lane = {.stream = true};
        tells = true;
        break;
      case CoreAction::Kind::kUseTcp: Ask(shard, action.rank, action.chunk); break;
      case CoreAction::Kind::kReady: Await(sums, action.chunk); break;
      // The next sum of the chunk overwrites what was folded.
      case CoreAction::Kind::kClear: break;
      case CoreAction::Kind::kAssign:
      case CoreAction::Kind::kAnswer:
      case CoreAction::Kind::kFold:
      case CoreAction::Kind::kFoldPushed:
      case CoreAction::Kind::kComplete:
        PHUB_CHECK(false, "action={}", static_cast<int>(action.kind));
    }
  }
  sums.actions.clear();
  if (tells) Flush(shard);
  AssignWaiting(shard);
}

void SumSequencer::Ask(JobShard& shard, Rank rank, ChunkIndex chunk) {
  ShardSums& sums = *shard.sums;
  const Lane& lane = shard.lanes[rank.value];
  if (lane.state != Lane::State::kOpen) return;  // it announces or pushes again on its next lane
  if (PostUseTcp(shard, rank, chunk, sums.stream.iteration(chunk))) return;
  std::uint64_t& ask = sums.chunks[chunk.value].ask;
  const std::uint64_t bit = std::uint64_t{1} << rank.value;
  if ((ask & bit) != 0) return;
  if (sums.asks++ == 0 || chunk.value < sums.ask_from) sums.ask_from = chunk.value;
  ask |= bit;
}

bool SumSequencer::Flush(JobShard& shard) {
  if (shard.sums == nullptr || !shard.live()) return false;
  bool posted = false;
  for (std::uint32_t rank = 0; rank < shard.config.world_size; ++rank)
    posted |= FlushLane(shard, Rank{rank});
  return FlushAsks(shard) || posted;
}

}  // namespace phub::server
