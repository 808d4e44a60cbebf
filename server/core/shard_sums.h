// A shard's stream of sums: gradients that an aggregator between workers and daemon adds up
// (common/aggregation, docs/aggregation.md). Here is its state; rounds/sum_sequencer.h has the
// rules.
//
// Ownership as with the shard: control creates it before kAddJob, and only the core loop uses it
// until kJobEnded. It allocates nothing after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/aggregation/core_stream.h"
#include "common/aggregation/packet.h"
#include "common/aggregation/stream.h"
#include "common/aggregation/stream_terms.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/single_writer_number.h"

namespace phub::server {

struct Chunk;
struct JobShard;

// Positions that may be open at once.
inline constexpr std::uint32_t kStreamPositions = 8;
inline constexpr std::uint32_t kNoChunk = UINT32_MAX;

// A core loop's end of the datagrams of one stream.
class SumPort {
 public:
  // These are as in aggregation::CorePort.
  using OnSum = std::function<void(const aggregation::CoreActions&,
                                   std::span<const std::int32_t> integers, std::uint8_t exponent)>;
  virtual ~SumPort() = default;
  // Datagrams are checked with this lease from now on.
  virtual void Open(const phub_lease& lease) = 0;
  // Receives one batch; returns false if none waits. Never blocks.
  virtual bool Receive(TimeNs now, const OnSum& on_sum) = 0;
  virtual void NoteAssigned(aggregation::Position position, TimeNs now) = 0;
  // Asks the aggregator for sums that have not arrived, at deadline() at the latest. Returns how
  // many datagrams that took. REQUIRES: a stream is open.
  virtual std::uint32_t AskAgain(TimeNs now) = 0;
  virtual TimeNs deadline() const = 0;
  virtual void SendParameters(const phub_parameters& about, std::span<const std::byte> bytes,
                              std::uint8_t worker) = 0;
  virtual void Flush() = 0;
  // Datagrams so far that were not from the stream's aggregator, or damaged.
  virtual std::uint64_t refused() const { return 0; }
};

struct ShardSums {
  // What must still be sent over the rank's lane; the transport was full.
  struct Lane {
    bool stream = false;          // which stream is open
    std::uint64_t positions = 0;  // a bit for each place whose position was assigned
  };
  struct Chunk {
    std::uint64_t ask = 0;             // a bit for each rank that must get kUseTcp
    std::uint32_t next = kNoChunk;     // in the list of chunks that wait for a position
    bool is_listed = false;            // it is in that list
    bool is_streamed = false;          // its accumulator has the sum of all ranks, as integers
    aggregation::LeaseNumber lease{};  // is_streamed: the stream that has summed it
    Rank last{};                       // the rank that announced it last
    Rank not_finite = Rank::Max();     // the first rank whose gradient is not finite
    std::uint32_t not_finite_count = 0;
    TimeNs gathered_at = 0;  // when the last rank announced it
  };

  // `block`: ShardConfig::sum_block.
  ShardSums(const aggregation::Geometry& geometry, std::uint32_t block, std::uint32_t ranks);

  // Its rounds may be summed by the aggregator. The state of other chunks is not kept here.
  bool Has(ChunkIndex chunk) const {
    return chunk.value < chunks.size() && stream.BlocksOf(chunk) != 0;
  }
  bool IsStreamed(ChunkIndex chunk) const { return Has(chunk) && chunks[chunk.value].is_streamed; }
  // Some rank has announced the chunk's round.
  bool IsAnnounced(ChunkIndex chunk) const { return Has(chunk) && stream.Announced(chunk) != 0; }
  bool HasAnnounced(ChunkIndex chunk, Rank rank) const {
    return Has(chunk) && (stream.Announced(chunk) >> rank.value & 1) != 0;
  }

  const aggregation::Geometry geometry;
  const std::uint32_t block;
  aggregation::CoreStream stream;
  std::unique_ptr<SumPort> port;           // set by control before the first kOpenStream
  phub_lease lease{};                      // while a stream is open
  std::vector<Lane> lanes;                 // [rank]
  std::vector<Chunk> chunks;               // [chunk]
  std::uint32_t first_waiting = kNoChunk;  // chunks that wait for a position
  std::uint32_t last_waiting = kNoChunk;
  std::uint32_t asks = 0;            // bits in Chunk::ask
  std::uint32_t ask_from = 0;        // chunks before it have none
  aggregation::CoreActions actions;  // scratch
  bool was_open = false;             // the port may have datagrams
  std::uint64_t refused = 0;         // the part of port->refused() that is counted
  std::uint32_t open_count = 0;      // open positions
  // For control: positions are open, and no sum has arrived since then; 0: none is open.
  SingleWriterNumber silent_since;
};

// The geometry of the streams of jobs with these settings; 0 blocks: their chunks have too many.
aggregation::Geometry StreamGeometry(std::uint32_t chunk_bytes, std::uint32_t block);

// The shard has another chunk, or has lost those from `first` on.
void AddStreamChunk(JobShard& shard, const Chunk& chunk);
void RemoveStreamChunks(JobShard& shard, std::uint32_t first);
// The rank has a new lane, on which nothing was said yet.
void NoteNewLane(JobShard& shard, Rank rank);

// How many datagrams a version of the chunk has. REQUIRES: shard.sums->Has(chunk).
std::uint32_t ParameterBlocksOf(const JobShard& shard, const Chunk& chunk);

// Whether the rank's gradient for the chunk's round has arrived or waits to be summed by the
// aggregator.
bool HasGradientOf(const JobShard& shard, const Chunk& chunk, Rank rank);
// Some rank's has.
bool HasBegun(const JobShard& shard, const Chunk& chunk);

}  // namespace phub::server
