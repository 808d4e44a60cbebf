// A worker's side of a stream of sums: what it sends, and when. Events in, actions out. Pure: no
// I/O, no clock, no payload. The caller performs the actions in order; it keeps a chunk's gradient
// unchanged from Push() until Parameters() has returned true. One thread.
//
// A chunk's iteration takes one of two ways. The core loop decides which, equally for all ranks:
//   stream  announce it over tcp; the core loop assigns a position; send its blocks as datagrams,
//           and again when the aggregator says MISSING
//   tcp     push it over tcp, because no stream is open, the stream ended before the parameters
//           came, or another rank has pushed this iteration over tcp
// On both ways the parameters come at the end: after a push as a message over tcp, otherwise as
// datagrams. A message comes only for a push, because a worker that has the parameters already does
// not expect one.
//
// The worker needs no timers and no acknowledgments: the core loop knows which sums it misses, and
// asks for them until it has them. A position is over for the worker if
//   - the core loop assigns the position that uses the same slots next, or
//   - the chunk's parameters arrive.
#pragma once

#include <cstdint>
#include <vector>

#include "common/aggregation/packet.h"
#include "common/aggregation/stream.h"
#include "common/base/ids.h"

namespace phub::aggregation {

struct WorkerAction {
  enum class Kind : std::uint8_t {
    kAnnounce,     // over tcp: the chunk's iteration is ready for the stream `lease`
    kPushTcp,      // over tcp: the chunk's gradient
    kSendPayload,  // a datagram with the block's integers
  };
  Kind kind = Kind::kAnnounce;
  ChunkIndex chunk{};
  Iteration iteration{};
  LeaseNumber lease{};      // all but kPushTcp
  Position position{};      // datagrams only
  std::uint32_t block = 0;  // datagrams only
};
using WorkerActions = std::vector<WorkerAction>;

class WorkerStream {
 public:
  explicit WorkerStream(const Geometry& geometry);

  // --- From the program.
  // Adds the chunk with the next number, which the core loop has already. `blocks`: as there; 0:
  // Push() never announces it.
  void AddChunk(std::uint32_t blocks);
  // Removes the chunks from `first` on; the core loop still has them, and a later chunk may have
  // their numbers.
  // REQUIRES: the parameters of every Push() of them have arrived.
  void RemoveChunks(ChunkIndex first);
  // REQUIRES: the parameters of the previous Push() of this chunk have arrived.
  void Push(ChunkIndex chunk, Iteration iteration, WorkerActions& actions);
  // A round that is not a sum, such as a broadcast: it goes over tcp even if there is a stream.
  // REQUIRES: as Push().
  void PushOverTcp(ChunkIndex chunk, Iteration iteration, WorkerActions& actions);

  // --- From the core loop, over tcp, in the order in which it sent them. False: the message is
  // impossible, and the lane must be closed.
  // The present stream, or kNoLease. It is also the first message on each new lane.
  void StreamIs(LeaseNumber lease, WorkerActions& actions);
  [[nodiscard]] bool Assign(LeaseNumber lease, Position position, ChunkIndex chunk,
                            Iteration iteration, WorkerActions& actions);
  [[nodiscard]] bool UseTcp(ChunkIndex chunk, Iteration iteration, WorkerActions& actions);
  // The parameters are complete. False if they are not what this worker waits for: it has them
  // already.
  bool Parameters(ChunkIndex chunk, Iteration iteration);
  // Messages of the old lane may be lost, so all that is outstanding is announced or pushed again.
  void LaneReopened(WorkerActions& actions);

  // --- From the aggregator: a MISSING that phub_packet_check() has found good. It is ignored if it
  // is not about an open position of this stream.
  void Missing(const phub_packet& packet, WorkerActions& actions);

  LeaseNumber lease() const { return lease_; }
  const Geometry& geometry() const { return geometry_; }
  std::uint32_t chunk_count() const { return static_cast<std::uint32_t>(chunks_.size()); }
  std::uint32_t BlocksOf(ChunkIndex chunk) const { return chunks_[chunk.value].blocks; }
  // No Push() of the chunk waits for its parameters.
  bool IsIdle(ChunkIndex chunk) const { return chunks_[chunk.value].state == State::kIdle; }
  // One does, and it goes over tcp.
  bool IsOverTcp(ChunkIndex chunk) const { return chunks_[chunk.value].state == State::kTcp; }
  // One does, and has a position: its parameters may be on their way.
  bool HasPosition(ChunkIndex chunk) const {
    return chunks_[chunk.value].state == State::kAssigned;
  }
  // One does, and its parameters come as datagrams.
  bool AwaitsDatagrams(ChunkIndex chunk) const { return !IsIdle(chunk) && !IsOverTcp(chunk); }
  // The iteration of the last Push().
  Iteration IterationOf(ChunkIndex chunk) const { return chunks_[chunk.value].iteration; }

  // Appends the whole state, for searches over states.
  void AppendState(std::vector<std::uint64_t>& words) const;

 private:
  enum class State : std::uint8_t { kIdle, kAnnounced, kAssigned, kTcp };
  struct Chunk {
    std::uint32_t blocks = 0;
    State state = State::kIdle;
    Iteration iteration{};
  };
  struct Place {
    bool open = false;
    Position position{};
    ChunkIndex chunk{};
  };

  void Announce(ChunkIndex chunk, WorkerActions& actions) const;
  void Begin(ChunkIndex chunk, Iteration iteration);
  void PushTcp(ChunkIndex chunk, WorkerActions& actions);
  WorkerAction About(WorkerAction::Kind kind, const Place& place, std::uint32_t block) const;
  void EndPlaceOf(ChunkIndex chunk);

  Geometry geometry_;
  LeaseNumber lease_ = kNoLease;
  std::vector<Chunk> chunks_;
  std::vector<Place> places_;
};

}  // namespace phub::aggregation
