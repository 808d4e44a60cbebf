// The messages of SumSequencer to workers' lanes.
#include <bit>
#include <optional>
#include <utility>

#include "common/aggregation/stream_terms.h"
#include "server/core/reply/bits.h"
#include "server/core/rounds/sum_sequencer.h"

namespace phub::server {
namespace {

using aggregation::CoreAction;

wire::MessageHeader StreamHeader(const JobShard& shard, wire::MessageKind kind) {
  wire::MessageHeader header = reply::HeaderFor(shard, kind);
  header.version = wire::kStreamVersion;
  return header;
}

// The message is about this round; the worker checks it.
wire::MessageHeader HeaderAbout(const JobShard& shard, wire::MessageKind kind,
                                const CoreAction& action) {
  wire::MessageHeader header = StreamHeader(shard, kind);
  header.chunk = action.chunk;
  header.iteration = action.iteration;
  return header;
}

}  // namespace

bool SumSequencer::FlushLane(JobShard& shard, Rank rank) {
  ShardSums& sums = *shard.sums;
  ShardSums::Lane& told = sums.lanes[rank.value];
  if (shard.lanes[rank.value].state != Lane::State::kOpen) return false;
  if (!told.stream && told.positions == 0) return false;
  if (told.stream && !PostStream(shard, rank)) return false;
  bool posted = std::exchange(told.stream, false);
  // In order of positions: a worker takes a position for the end of the one before at its place.
  while (told.positions != 0) {
    std::optional<CoreAction> first;
    for (std::uint64_t left = told.positions; left != 0; left &= left - 1) {
      const auto place = static_cast<std::uint32_t>(std::countr_zero(left));
      const std::optional<CoreAction> each = sums.stream.AssignmentAt(place);
      if (!each) {
        told.positions &= ~(std::uint64_t{1} << place);
      } else if (!first || each->position < first->position) {
        first = each;
      }
    }
    if (!first) break;
    if (!PostAssignment(shard, rank, *first)) return posted;
    told.positions &= ~(std::uint64_t{1} << sums.geometry.PlaceOf(first->position));
    posted = true;
  }
  return posted;
}

bool SumSequencer::FlushAsks(JobShard& shard) {
  ShardSums& sums = *shard.sums;
  bool posted = false;
  for (; sums.asks > 0 && sums.ask_from < sums.chunks.size(); ++sums.ask_from) {
    std::uint64_t& ask = sums.chunks[sums.ask_from].ask;
    while (ask != 0) {
      const Rank rank{static_cast<std::uint32_t>(std::countr_zero(ask))};
      const bool open = shard.lanes[rank.value].state == Lane::State::kOpen;
      const ChunkIndex chunk{sums.ask_from};
      if (open && !PostUseTcp(shard, rank, chunk, sums.stream.iteration(chunk))) return posted;
      ask &= ask - 1;
      --sums.asks;
      posted = true;
    }
  }
  return posted;
}

bool SumSequencer::Post(JobShard& shard, Rank rank, const wire::MessageHeader& header,
                        std::span<const std::byte> payload) {
  const Lane& lane = shard.lanes[rank.value];
  // A rank without datagrams has no part in a stream, so it needs no news of it.
  if (lane.peer->version() < wire::kStreamVersion) return true;
  transport::SendRequest request;
  request.header = header;
  request.header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  request.payload = payload;
  request.connections = {&lane.connection, 1};
  return stages_.loop.transports[lane.transport_index]->Post({&request, 1}) == 1;
}

bool SumSequencer::PostStream(JobShard& shard, Rank rank) {
  const ShardSums& sums = *shard.sums;
  const wire::MessageHeader header = StreamHeader(shard, wire::MessageKind::kStreamIs);
  if (sums.stream.lease() == aggregation::kNoLease) return Post(shard, rank, header, {});
  const aggregation::StreamTerms terms = {
      .lease = sums.stream.lease(),
      .worker = static_cast<std::uint8_t>(rank.value),
      .worker_count = static_cast<std::uint8_t>(sums.lease.worker_count),
      .count_max = static_cast<std::uint16_t>(sums.lease.count_max),
      .geometry = sums.geometry,
      .key = sums.lease.key,
      .aggregator = sums.lease.aggregator};
  std::array<std::byte, aggregation::kStreamTermsBytes> bytes;
  aggregation::EncodeStreamTerms(terms, bytes);
  return Post(shard, rank, header, bytes);
}

bool SumSequencer::PostAssignment(JobShard& shard, Rank rank, const CoreAction& assignment) {
  wire::MessageHeader header = HeaderAbout(shard, wire::MessageKind::kAssign, assignment);
  header.slot = SlotIndex{assignment.lease.value};
  header.value_bits = assignment.position.value;
  return Post(shard, rank, header, std::as_bytes(shard.sums->stream.Exponents(assignment.chunk)));
}

bool SumSequencer::PostUseTcp(JobShard& shard, Rank rank, ChunkIndex chunk, Iteration iteration) {
  const CoreAction about{.chunk = chunk, .iteration = iteration};
  return Post(shard, rank, HeaderAbout(shard, wire::MessageKind::kUseTcp, about), {});
}

}  // namespace phub::server
