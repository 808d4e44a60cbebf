// The core loop's side of a stream of sums: which chunk is summed at which position, which sums are
// folded, and when a position is complete. Events in, actions out. Pure: no I/O, no clock, no
// payload. The caller performs the actions in order. One thread.
//
// Each iteration of a chunk is summed once, in one of two ways, for all ranks alike:
//   stream  all ranks have announced it under the present lease. When its turn comes, the caller
//           assigns the next position, and the sums of its blocks are folded as they arrive.
//   tcp     every rank pushes it over tcp. The first push of a chunk's iteration decides for tcp:
//           ranks that have announced it are asked to push it.
//
// Position k uses the same slots as k - S, so it is assigned only once all blocks of k - S have
// been folded. Sums of positions that are not open are dropped. Nobody else knows which sums are
// missing of an open position, so the caller asks the aggregator for them (IsMissing()).
//
// Chunks come and go with the keys of the job, and have the numbers of the shard's chunks. A chunk
// with 0 blocks is never summed in the network: every rank pushes it over tcp. So is a round that
// is not a sum, such as a broadcast, of any chunk.
//
// If the stream closes, nothing that is not complete is kept: what was folded of open positions is
// cleared, and every rank pushes those chunks over tcp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/aggregation/packet.h"
#include "common/aggregation/stream.h"
#include "common/base/ids.h"

namespace phub::aggregation {

inline constexpr Rank kEveryRank = Rank::Max();

struct CoreAction {
  enum class Kind : std::uint8_t {
    // To `rank` or every rank, over tcp.
    kStreamIs,  // `lease` is the present stream; kNoLease: no stream is open
    kAssign,    // the chunk's iteration has `position` in stream `lease`
    kUseTcp,    // push the chunk's iteration over tcp
    kAnswer,    // the parameters of this iteration, which the rank has missed
    // Here.
    kReady,       // all ranks have announced the chunk: call Assign() when its turn comes
    kFold,        // the sum that Sum() was called with, to the chunk's accumulator at `block`
    kFoldPushed,  // what every rank has pushed over tcp
    kClear,       // discard what was folded of the chunk's iteration
    kComplete,    // the chunk's iteration is summed: update it, and send the parameters to all
  };
  Kind kind = Kind::kStreamIs;
  Rank rank = kEveryRank;
  ChunkIndex chunk{};
  Iteration iteration{};
  LeaseNumber lease{};
  Position position{};
  std::uint32_t block = 0;
};
using CoreActions = std::vector<CoreAction>;

// What became of a sum; one counter each.
enum class SumVerdict : std::uint8_t {
  kFolded,
  kRepeated,  // its block is folded already
  kOld,       // it has another lease or another position
  kWrong,     // a slot that the chunk or the stream does not have, or another exponent
};

class CoreStream {
 public:
  // At most PHUB_WORKERS_MAX ranks.
  CoreStream(const Geometry& geometry, std::uint32_t ranks);

  // Allocates for that many chunks, so that AddChunk() does not until there are more. The system
  // allocates pages as chunks are added.
  void Reserve(std::uint32_t chunks);

  // --- From control.
  // Adds the chunk with the next number. `blocks`: at most geometry.blocks; 0: only over tcp.
  // `first`: its first iteration. Ranks may announce or push it from now on.
  void AddChunk(std::uint32_t blocks, Iteration first);
  // Removes the chunks from `first` on. A later chunk may have their numbers.
  // REQUIRES: every rank has the parameters of all that it announced or pushed of them; IsIdle().
  void RemoveChunks(ChunkIndex first);
  // REQUIRES: no stream is open; this lease was never opened before.
  void Open(LeaseNumber lease, CoreActions& actions);
  // The aggregator is lost or a worker's process was replaced. Nothing happens if none is open.
  void Close(CoreActions& actions);
  // Another process is `rank` now, on a new lane. REQUIRES: no stream is open.
  void RankReplaced(Rank rank, CoreActions& actions);
  // The same process has a new lane; what was sent on the old one may be lost.
  void LaneReopened(Rank rank, CoreActions& actions);

  // --- From a rank, over tcp. False: an honest rank never sends this; the rank is at fault.
  // `exponents`: those of the rank's gradient, by block (fixed_point.h).
  [[nodiscard]] bool Announce(Rank rank, LeaseNumber lease, ChunkIndex chunk, Iteration iteration,
                              std::span<const std::uint8_t> exponents, CoreActions& actions);
  [[nodiscard]] bool Push(Rank rank, ChunkIndex chunk, Iteration iteration, CoreActions& actions);
  // The two parts of Push(), for a caller that keeps track of pushes itself and finds out before
  // the call that the push is about the present iteration. Begin: some rank has pushed it, so all
  // must. Finish: every rank has, and the chunk has its next version.
  void BeginOverTcp(ChunkIndex chunk, CoreActions& actions);
  void FinishOverTcp(ChunkIndex chunk);

  // --- From the scheduler. Chunks that are ready may be assigned in any order.
  bool CanAssign(ChunkIndex chunk) const;
  // REQUIRES: CanAssign(chunk).
  void Assign(ChunkIndex chunk, CoreActions& actions);

  // --- From the aggregator: a SUM that phub_packet_check() has found good.
  SumVerdict Sum(const phub_packet& packet, CoreActions& actions);

  LeaseNumber lease() const { return lease_; }
  std::uint32_t chunk_count() const { return static_cast<std::uint32_t>(chunks_.size()); }
  std::uint32_t BlocksOf(ChunkIndex chunk) const { return chunks_[chunk.value].blocks; }
  // The greatest exponents of all ranks, by block. REQUIRES: the chunk is ready, has a position, or
  // was complete and nobody has announced its next iteration.
  std::span<const std::uint8_t> Exponents(ChunkIndex chunk) const;
  // The ranks that have announced the chunk's present iteration, a bit each.
  std::uint64_t Announced(ChunkIndex chunk) const { return chunks_[chunk.value].announced; }
  bool IsOverTcp(ChunkIndex chunk) const { return chunks_[chunk.value].over_tcp; }
  // Whether the position is open, and the sum of its block has not arrived.
  bool IsMissing(Position position, std::uint32_t block) const {
    const Place& place = places_[geometry_.PlaceOf(position)];
    return place.open && place.position == position && block < place.blocks && !place.folded[block];
  }
  // The kAssign of the open position at the place (position modulo S), if there is one.
  std::optional<CoreAction> AssignmentAt(std::uint32_t place) const;
  // No rank has announced or pushed the chunk's present iteration.
  bool IsIdle(ChunkIndex chunk) const;
  // The iteration of the chunk that is summed next.
  Iteration iteration(ChunkIndex chunk) const { return chunks_[chunk.value].iteration; }

  // Appends the whole state, for searches over states.
  void AppendState(std::vector<std::uint64_t>& words) const;

 private:
  enum class State : std::uint8_t { kWaiting, kReady, kOpen };
  struct Chunk {
    State state = State::kWaiting;
    std::uint32_t blocks = 0;
    Iteration iteration{};
    std::uint64_t announced = 0;  // a bit per rank, under the present lease
    std::uint64_t pushed = 0;     // a bit per rank, over tcp
    bool over_tcp = false;        // some rank has pushed it
  };
  struct Place {
    bool open = false;
    Position position{};
    ChunkIndex chunk{};
    std::uint32_t blocks = 0;  // the chunk's
    std::uint32_t folded_count = 0;
    std::vector<bool> folded;  // by block
  };

  // Handles a rank's message that is not about the present iteration of a chunk: an answer if that
  // iteration is complete. Returns what the message's function returns; nothing if the message is
  // about the present iteration.
  std::optional<bool> AnswerOld(Rank rank, ChunkIndex chunk, Iteration iteration,
                                CoreActions& actions) const;
  bool IsRank(Rank rank) const { return rank.value < ranks_; }
  CoreAction About(CoreAction::Kind kind, ChunkIndex chunk) const;
  CoreAction AssignmentOf(const Place& place, Rank rank) const;
  std::span<std::uint8_t> ExponentsOf(ChunkIndex chunk);
  void TellStream(Rank rank, CoreActions& actions) const;
  void AskForPushes(ChunkIndex chunk, CoreActions& actions);
  void Complete(ChunkIndex chunk, CoreActions& actions);

  Geometry geometry_;
  std::uint32_t ranks_;
  std::uint64_t every_rank_;
  LeaseNumber lease_ = kNoLease;
  Position next_{};
  std::vector<Chunk> chunks_;
  // By chunk, geometry_.blocks each: the greatest of the ranks that announced, by block.
  std::vector<std::uint8_t> exponents_;
  std::vector<Place> places_;
};

}  // namespace phub::aggregation
