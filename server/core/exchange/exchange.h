// The stage between aggregation and optimizer for jobs that span racks: partial sums go up the
// chunk's in-tree, new parameters come down its out-tree.
//
// A chunk's round, at one rack:
//   own sum complete and every child's partial sum arrived -> fold them, in the plan's order
//     at the home:     the total is in the accumulator             -> Step::kTotal
//     at other racks:  send the accumulator to the parent and open the slot for the parameters
//   new parameters arrived (they land in the chunk's memory)       -> Step::kResult
// The core loop then applies or accepts the version, calls PassOn, and replies to its workers.
//
// An aggregator has no own sum: it sends the partial sum up once every child's has arrived, and
// forwards results as they arrive.
//
// Messages have the same form as on a worker's lane. A partial sum is a kGradient in the
// accumulation type, with a hash of the hyper-parameters of its record in reply_address. New
// parameters are kParameters. Messages from peers are validated like those of workers. Partial sums
// are lent to the transport until the result arrives, parameters until those of the next round
// arrive. So neither needs kSent, which is requested to measure the time that the lane takes, and
// because lower priority classes wait for it (peer_window.h).
//
// Core loop's thread; nothing allocates.
#pragma once

#include <array>
#include <limits>
#include <span>

#include "server/core/exchange/shard_exchange.h"
#include "server/metrics/counters.h"

namespace phub::server::exchange {

enum class Step : std::uint8_t {
  kWaits,   // the round waits for this rack's ranks or for other racks
  kTotal,   // home: the sum over all racks is in chunk->accumulator
  kResult,  // the new version is at chunk->NextParameters()
  kFault,   // the sender broke the protocol or contradicts others
};

struct Verdict {
  Step step = Step::kWaits;
  FaultCode fault = FaultCode::kNone;
  Chunk* chunk = nullptr;  // null: the fault does not concern a chunk
  RackIndex other{};       // kRoundMismatch: the rack that contradicts
};

class ExchangeStage {
 public:
  ExchangeStage(std::span<transport::Transport* const> transports, CoreCounters& counters)
      : transports_(transports), counters_(counters) {}

  void BeginRun(TimeNs now) {
    now_ = now;
    next_ = kNever;
  }
  // When Flush() may post more although nothing happens until then; the maximum: never.
  TimeNs next() const { return next_; }
  // Call when every own rank's gradient is folded into the chunk's accumulator. has_payload: false
  // for kLoad, and for kAssign if the root is in another rack.
  Verdict OnLocalSum(JobShard& shard, Chunk& chunk, bool has_payload);
  Verdict OnMessage(JobShard& shard, RackIndex from, const transport::ReceivedMessage& message);
  // Sends the new version down the out-tree. Call after chunk.applied was incremented.
  void PassOn(JobShard& shard, Chunk& chunk);
  // The system has accepted the last byte of a message to that rack; `cookie` is the request's.
  void OnSent(JobShard& shard, RackIndex to, std::uint64_t cookie);
  // Posts the messages that found no room before. True if it posted any.
  bool Flush(JobShard& shard);

 private:
  static constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();
  enum class Part : std::uint8_t { kBegins, kEnds };
  void Measure(JobShard& shard, const ChunkExchange& state, ExchangeSpan span, Part part);
  void NotePart(JobShard& shard, ChunkExchange& state, RackIndex from);
  Verdict OnPartial(JobShard& shard, RackIndex from, const transport::ReceivedMessage& message);
  Verdict OnParameters(JobShard& shard, RackIndex from, const transport::ReceivedMessage& message);
  Verdict Advance(JobShard& shard, Chunk& chunk, ChunkExchange& state);
  void FoldPartials(JobShard& shard, Chunk& chunk, ChunkExchange& state);
  Verdict SendUp(JobShard& shard, Chunk& chunk, ChunkExchange& state);
  void Send(JobShard& shard, RackIndex to, std::uint32_t entry);
  bool Post(JobShard& shard, RackIndex to, std::uint32_t entry);
  bool PostWaiting(JobShard& shard, RackIndex to, std::size_t level);
  bool PostDue(JobShard& shard);
  void NoteRound(JobShard& shard, const ChunkExchange& state, Part part);
  void NoteArrived(JobShard& shard, const Chunk& chunk, std::uint32_t bytes);
  static void NoteWaits(JobShard& shard, RackIndex to, std::uint32_t entry, bool waits);

  const std::span<transport::Transport* const> transports_;
  CoreCounters& counters_;
  TimeNs now_ = 0;  // when the loop's run began
  TimeNs next_ = kNever;
  std::array<const std::byte*, kRacksMax> inputs_{};  // scratch of FoldPartials
};

}  // namespace phub::server::exchange
