#include "common/aggregation/worker_stream.h"

#include "common/base/check.h"

namespace phub::aggregation {

WorkerStream::WorkerStream(const Geometry& geometry)
    : geometry_(geometry), places_(geometry.positions) {
  PHUB_CHECK(geometry.positions > 0);
}

void WorkerStream::AddChunk(std::uint32_t blocks) {
  PHUB_CHECK(blocks <= geometry_.blocks, "blocks={}", blocks);
  chunks_.push_back({.blocks = blocks});
}

void WorkerStream::RemoveChunks(ChunkIndex first) {
  for (std::size_t i = first.value; i < chunks_.size(); ++i)
    PHUB_CHECK(chunks_[i].state == State::kIdle, "chunk={} is pushed", i);
  if (first.value < chunks_.size()) chunks_.resize(first.value);
}

void WorkerStream::Begin(ChunkIndex chunk, Iteration iteration) {
  PHUB_CHECK(chunk.value < chunks_.size(), "chunk={}", chunk.value);
  Chunk& pushed = chunks_[chunk.value];
  PHUB_CHECK(pushed.state == State::kIdle, "chunk={} is pushed already", chunk.value);
  pushed.iteration = iteration;
}

void WorkerStream::Push(ChunkIndex chunk, Iteration iteration, WorkerActions& actions) {
  Begin(chunk, iteration);
  Chunk& pushed = chunks_[chunk.value];
  if (lease_ == kNoLease || pushed.blocks == 0) return PushTcp(chunk, actions);
  pushed.state = State::kAnnounced;
  Announce(chunk, actions);
}

void WorkerStream::PushOverTcp(ChunkIndex chunk, Iteration iteration, WorkerActions& actions) {
  Begin(chunk, iteration);
  PushTcp(chunk, actions);
}

void WorkerStream::Announce(ChunkIndex chunk, WorkerActions& actions) const {
  actions.push_back({.kind = WorkerAction::Kind::kAnnounce,
                     .chunk = chunk,
                     .iteration = chunks_[chunk.value].iteration,
                     .lease = lease_});
}

void WorkerStream::PushTcp(ChunkIndex chunk, WorkerActions& actions) {
  chunks_[chunk.value].state = State::kTcp;
  actions.push_back({.kind = WorkerAction::Kind::kPushTcp,
                     .chunk = chunk,
                     .iteration = chunks_[chunk.value].iteration});
}

WorkerAction WorkerStream::About(WorkerAction::Kind kind, const Place& place,
                                 std::uint32_t block) const {
  return {.kind = kind,
          .chunk = place.chunk,
          .iteration = chunks_[place.chunk.value].iteration,
          .lease = lease_,
          .position = place.position,
          .block = block};
}

void WorkerStream::EndPlaceOf(ChunkIndex chunk) {
  for (Place& place : places_) {
    if (place.chunk == chunk) place.open = false;
  }
}

void WorkerStream::StreamIs(LeaseNumber lease, WorkerActions& actions) {
  if (lease == lease_) return;
  lease_ = lease;
  for (Place& place : places_) place.open = false;
  // What the old stream has not summed goes over tcp. What it has summed goes there, too: the push
  // is a duplicate, and asks for the parameters.
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
    if (AwaitsDatagrams(ChunkIndex{i})) PushTcp(ChunkIndex{i}, actions);
  }
}

bool WorkerStream::Assign(LeaseNumber lease, Position position, ChunkIndex chunk,
                          Iteration iteration, WorkerActions& actions) {
  if (lease != lease_ || lease == kNoLease) return false;
  if (chunk.value >= chunks_.size()) return false;
  Place& place = places_[geometry_.PlaceOf(position)];
  if (place.open && place.position == position) return place.chunk == chunk;  // assigned again
  Chunk& assigned = chunks_[chunk.value];
  // After a lane was lost, the core loop assigns open positions again. The parameters may have
  // arrived as datagrams since then.
  const bool is_over = assigned.state == State::kIdle && assigned.iteration == iteration;
  if (assigned.iteration > iteration || is_over) return true;
  if (assigned.iteration != iteration || assigned.state != State::kAnnounced) return false;
  // The core loop uses a place again only once it has all sums of the position there.
  place = {.open = true, .position = position, .chunk = chunk};
  assigned.state = State::kAssigned;
  for (std::uint32_t block = 0; block < assigned.blocks; ++block)
    actions.push_back(About(WorkerAction::Kind::kSendPayload, place, block));
  return true;
}

bool WorkerStream::UseTcp(ChunkIndex chunk, Iteration iteration, WorkerActions& actions) {
  if (chunk.value >= chunks_.size()) return false;
  // The stream may have ended meanwhile, and the chunk was pushed then. Or the datagrams that this
  // worker had asked for have arrived.
  if (!AwaitsDatagrams(chunk) || chunks_[chunk.value].iteration != iteration) return true;
  EndPlaceOf(chunk);
  PushTcp(chunk, actions);
  return true;
}

bool WorkerStream::Parameters(ChunkIndex chunk, Iteration iteration) {
  if (chunk.value >= chunks_.size()) return false;
  Chunk& complete = chunks_[chunk.value];
  if (complete.state == State::kIdle || complete.iteration != iteration) return false;
  EndPlaceOf(chunk);
  complete.state = State::kIdle;
  return true;
}

void WorkerStream::LaneReopened(WorkerActions& actions) {
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
    switch (chunks_[i].state) {
      case State::kIdle: break;
      case State::kAnnounced:
      case State::kAssigned: Announce(ChunkIndex{i}, actions); break;
      case State::kTcp: PushTcp(ChunkIndex{i}, actions); break;
    }
  }
}

void WorkerStream::Missing(const phub_packet& packet, WorkerActions& actions) {
  if (lease_ == kNoLease || packet.lease != lease_.value) return;
  const std::uint32_t index = packet.slot / geometry_.blocks;
  const std::uint32_t block = packet.slot % geometry_.blocks;
  if (index >= places_.size()) return;
  const Place& place = places_[index];
  if (!place.open || geometry_.PhaseOf(place.position) != packet.phase) return;
  if (block < chunks_[place.chunk.value].blocks)
    actions.push_back(About(WorkerAction::Kind::kSendPayload, place, block));
}

void WorkerStream::AppendState(std::vector<std::uint64_t>& words) const {
  words.push_back(lease_.value);
  for (const Chunk& chunk : chunks_) {
    words.push_back(static_cast<std::uint64_t>(chunk.state));
    words.push_back(chunk.iteration.value);
  }
  for (const Place& place : places_) {
    words.push_back(place.open ? place.position.value + 1 : 0);
    words.push_back(place.open ? place.chunk.value : 0);
  }
}

}  // namespace phub::aggregation
