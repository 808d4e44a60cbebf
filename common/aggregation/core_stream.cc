#include "common/aggregation/core_stream.h"

#include <algorithm>

#include "common/aggregation/slot.h"
#include "common/base/check.h"

namespace phub::aggregation {
namespace {

constexpr std::uint64_t RankBit(std::uint32_t rank) { return std::uint64_t{1} << rank; }

}  // namespace

CoreStream::CoreStream(const Geometry& geometry, std::uint32_t ranks)
    : geometry_(geometry),
      ranks_(ranks),
      every_rank_(phub_every_worker_bit(ranks)),
      places_(geometry.positions) {
  PHUB_CHECK(geometry.positions > 0);
  PHUB_CHECK(ranks > 0 && ranks <= PHUB_WORKERS_MAX, "ranks={}", ranks);
  for (Place& place : places_) place.folded.resize(geometry.blocks);
}

void CoreStream::AddChunk(std::uint32_t blocks, Iteration first) {
  PHUB_CHECK(blocks <= geometry_.blocks, "blocks={}", blocks);
  chunks_.push_back({.blocks = blocks, .iteration = first});
  exponents_.resize(chunks_.size() * geometry_.blocks);
}

void CoreStream::Reserve(std::uint32_t chunks) {
  chunks_.reserve(chunks);
  exponents_.reserve(std::size_t{chunks} * geometry_.blocks);
}

std::span<std::uint8_t> CoreStream::ExponentsOf(ChunkIndex chunk) {
  return std::span(exponents_)
      .subspan(std::size_t{chunk.value} * geometry_.blocks, chunks_[chunk.value].blocks);
}

void CoreStream::RemoveChunks(ChunkIndex first) {
  for (std::size_t i = first.value; i < chunks_.size(); ++i)
    PHUB_CHECK(IsIdle(ChunkIndex{static_cast<std::uint32_t>(i)}), "chunk={}", i);
  if (first.value >= chunks_.size()) return;
  chunks_.resize(first.value);
  exponents_.resize(chunks_.size() * geometry_.blocks);
}

bool CoreStream::IsIdle(ChunkIndex chunk) const {
  const Chunk& asked = chunks_[chunk.value];
  return asked.state == State::kWaiting && asked.announced == 0 && !asked.over_tcp;
}

void CoreStream::TellStream(Rank rank, CoreActions& actions) const {
  actions.push_back({.kind = CoreAction::Kind::kStreamIs, .rank = rank, .lease = lease_});
}

CoreAction CoreStream::About(CoreAction::Kind kind, ChunkIndex chunk) const {
  return {
      .kind = kind, .chunk = chunk, .iteration = chunks_[chunk.value].iteration, .lease = lease_};
}

CoreAction CoreStream::AssignmentOf(const Place& place, Rank rank) const {
  CoreAction action = About(CoreAction::Kind::kAssign, place.chunk);
  action.rank = rank;
  action.position = place.position;
  return action;
}

void CoreStream::Open(LeaseNumber lease, CoreActions& actions) {
  PHUB_CHECK(lease_ == kNoLease && lease != kNoLease, "lease={} open={}", lease.value,
             lease_.value);
  lease_ = lease;
  next_ = Position{0};
  for (Place& place : places_) place.open = false;
  TellStream(kEveryRank, actions);
}

void CoreStream::Close(CoreActions& actions) {
  if (lease_ == kNoLease) return;
  for (Place& place : places_) {
    if (place.open) actions.push_back(About(CoreAction::Kind::kClear, place.chunk));
    place.open = false;
  }
  for (Chunk& chunk : chunks_) {
    chunk.state = State::kWaiting;
    chunk.announced = 0;
  }
  lease_ = kNoLease;
  TellStream(kEveryRank, actions);
}

void CoreStream::RankReplaced(Rank rank, CoreActions& actions) {
  PHUB_CHECK(IsRank(rank) && lease_ == kNoLease, "rank={} lease={}", rank.value, lease_.value);
  // The new process pushes its own gradients.
  for (Chunk& chunk : chunks_) chunk.pushed &= ~RankBit(rank.value);
  TellStream(rank, actions);
}

void CoreStream::LaneReopened(Rank rank, CoreActions& actions) {
  PHUB_CHECK(IsRank(rank), "rank={}", rank.value);
  TellStream(rank, actions);
  std::vector<const Place*> open;
  for (const Place& place : places_) {
    if (place.open) open.push_back(&place);
  }
  std::ranges::sort(open, {}, [](const Place* place) { return place->position; });
  for (const Place* place : open) actions.push_back(AssignmentOf(*place, rank));
}

std::optional<bool> CoreStream::AnswerOld(Rank rank, ChunkIndex chunk, Iteration iteration,
                                          CoreActions& actions) const {
  if (!IsRank(rank) || chunk.value >= chunks_.size()) return false;
  const Iteration present = chunks_[chunk.value].iteration;
  if (iteration == present) return std::nullopt;
  if (iteration.value + 1 != present.value) return false;
  actions.push_back(
      {.kind = CoreAction::Kind::kAnswer, .rank = rank, .chunk = chunk, .iteration = iteration});
  return true;
}

std::span<const std::uint8_t> CoreStream::Exponents(ChunkIndex chunk) const {
  return std::span(exponents_)
      .subspan(std::size_t{chunk.value} * geometry_.blocks, chunks_[chunk.value].blocks);
}

std::optional<CoreAction> CoreStream::AssignmentAt(std::uint32_t index) const {
  const Place& place = places_[index];
  if (!place.open) return std::nullopt;
  return AssignmentOf(place, kEveryRank);
}

bool CoreStream::Announce(Rank rank, LeaseNumber lease, ChunkIndex chunk, Iteration iteration,
                          std::span<const std::uint8_t> exponents, CoreActions& actions) {
  if (const auto done = AnswerOld(rank, chunk, iteration, actions)) return *done;
  Chunk& announced = chunks_[chunk.value];
  if (announced.blocks == 0 || exponents.size() != announced.blocks) return false;
  // For an old stream. The rank will push the chunk once it learns that the stream has ended.
  if (lease == kNoLease || lease != lease_) return true;
  if ((announced.announced & RankBit(rank.value)) != 0) return true;  // again, on a new lane
  if (announced.over_tcp) {
    CoreAction action = About(CoreAction::Kind::kUseTcp, chunk);
    action.rank = rank;
    actions.push_back(action);
    return true;
  }
  const std::span<std::uint8_t> greatest = ExponentsOf(chunk);
  if (announced.announced == 0) std::ranges::fill(greatest, std::uint8_t{0});
  for (std::uint32_t block = 0; block < announced.blocks; ++block)
    greatest[block] = std::max(greatest[block], exponents[block]);
  announced.announced |= RankBit(rank.value);
  if (announced.announced == every_rank_) {
    announced.state = State::kReady;
    actions.push_back(About(CoreAction::Kind::kReady, chunk));
  }
  return true;
}

void CoreStream::AskForPushes(ChunkIndex chunk, CoreActions& actions) {
  Chunk& asked = chunks_[chunk.value];
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    if ((asked.announced & RankBit(rank)) == 0) continue;
    CoreAction action = About(CoreAction::Kind::kUseTcp, chunk);
    action.rank = Rank{rank};
    actions.push_back(action);
  }
  asked.announced = 0;
}

bool CoreStream::Push(Rank rank, ChunkIndex chunk, Iteration iteration, CoreActions& actions) {
  if (const auto done = AnswerOld(rank, chunk, iteration, actions)) return *done;
  Chunk& pushed = chunks_[chunk.value];
  // A rank that has announced a chunk pushes it only when asked to, or after the stream has ended.
  if ((pushed.announced & RankBit(rank.value)) != 0) return false;
  pushed.pushed |= RankBit(rank.value);
  BeginOverTcp(chunk, actions);
  if (pushed.pushed != every_rank_) return true;
  actions.push_back(About(CoreAction::Kind::kFoldPushed, chunk));
  Complete(chunk, actions);
  return true;
}

void CoreStream::BeginOverTcp(ChunkIndex chunk, CoreActions& actions) {
  Chunk& pushed = chunks_[chunk.value];
  if (pushed.announced != 0) {
    PHUB_CHECK(pushed.state == State::kWaiting, "chunk={}", chunk.value);
    AskForPushes(chunk, actions);
  }
  pushed.over_tcp = true;
}

void CoreStream::FinishOverTcp(ChunkIndex chunk) {
  Chunk& complete = chunks_[chunk.value];
  PHUB_CHECK(complete.over_tcp && complete.announced == 0, "chunk={}", chunk.value);
  complete.pushed = 0;
  complete.over_tcp = false;
  ++complete.iteration.value;
}

bool CoreStream::CanAssign(ChunkIndex chunk) const {
  return lease_ != kNoLease && chunk.value < chunks_.size() &&
         chunks_[chunk.value].state == State::kReady && !places_[geometry_.PlaceOf(next_)].open;
}

void CoreStream::Assign(ChunkIndex chunk, CoreActions& actions) {
  PHUB_CHECK(CanAssign(chunk), "chunk={}", chunk.value);
  Place& place = places_[geometry_.PlaceOf(next_)];
  place.open = true;
  place.position = next_;
  place.chunk = chunk;
  place.blocks = chunks_[chunk.value].blocks;
  place.folded_count = 0;
  place.folded.assign(place.folded.size(), false);
  ++next_.value;
  chunks_[chunk.value].state = State::kOpen;
  actions.push_back(AssignmentOf(place, kEveryRank));
}

SumVerdict CoreStream::Sum(const phub_packet& packet, CoreActions& actions) {
  if (lease_ == kNoLease || packet.lease != lease_.value) return SumVerdict::kOld;
  const std::uint32_t index = packet.slot / geometry_.blocks;
  const std::uint32_t block = packet.slot % geometry_.blocks;
  if (index >= places_.size()) return SumVerdict::kWrong;
  Place& place = places_[index];
  if (!place.open || packet.phase != geometry_.PhaseOf(place.position)) return SumVerdict::kOld;
  if (block >= place.blocks) return SumVerdict::kWrong;
  // The aggregator adds only contributions with equal exponents.
  if (packet.exponent != ExponentsOf(place.chunk)[block]) return SumVerdict::kWrong;
  if (place.folded[block]) return SumVerdict::kRepeated;
  place.folded[block] = true;
  ++place.folded_count;
  CoreAction fold = About(CoreAction::Kind::kFold, place.chunk);
  fold.position = place.position;
  fold.block = block;
  actions.push_back(fold);
  if (place.folded_count == place.blocks) {
    place.open = false;
    Complete(place.chunk, actions);
  }
  return SumVerdict::kFolded;
}

void CoreStream::Complete(ChunkIndex chunk, CoreActions& actions) {
  actions.push_back(About(CoreAction::Kind::kComplete, chunk));
  Chunk& complete = chunks_[chunk.value];
  complete.state = State::kWaiting;
  complete.announced = complete.pushed = 0;
  complete.over_tcp = false;
  ++complete.iteration.value;
}

void CoreStream::AppendState(std::vector<std::uint64_t>& words) const {
  words.push_back(lease_.value);
  words.push_back(next_.value);
  for (std::uint32_t i = 0; i < chunk_count(); ++i) {
    const Chunk& chunk = chunks_[i];
    words.push_back(static_cast<std::uint64_t>(chunk.state));
    words.push_back(chunk.iteration.value);
    words.push_back(chunk.announced);
    words.push_back(chunk.pushed);
    words.push_back(chunk.over_tcp ? 1 : 0);
    const std::span<const std::uint8_t> exponents = Exponents(ChunkIndex{i});
    words.insert(words.end(), exponents.begin(), exponents.end());
  }
  for (const Place& place : places_) {
    words.push_back(place.open ? 1 : 0);
    if (!place.open) continue;
    words.push_back(place.position.value);
    words.push_back(place.chunk.value);
    for (const bool folded : place.folded) words.push_back(folded ? 1 : 0);
  }
}

}  // namespace phub::aggregation
