// The stage between aggregation and optimizer for jobs that span racks: partial sums go up the
// chunk's in-tree, new parameters come down its out-tree.
//
// A chunk's round, at one rack:
//   own sum complete + every child's partial here -> fold the partials, in the plan's order
//     at the home:  the total is in the accumulator           -> Step::kTotal
//     elsewhere:    the accumulator is sent to the parent, and the parameters' slot is opened
//   new parameters came (they landed where the chunk's lie)    -> Step::kResult
// The core loop then applies or takes over the version, calls PassOn, and replies to its workers.
//
// An aggregator has no own sum: the partial goes up once every child's is here, and results are
// passed on as they come.
//
// Messages are those of a worker's lane: a partial is a kGradient in the accumulation type, whose
// reply_address holds a hash of the hyper-parameters that its record stands for; new parameters are
// kParameters. What a peer says is judged by value, as a worker is. Partials are lent to the
// transport until the result comes, parameters until the next round's: neither needs kSent, which
// is asked for to measure how long the lane takes for them.
//
// Core loop's thread; nothing allocates.
#pragma once

#include <array>
#include <span>

#include "server/core/exchange/shard_exchange.h"
#include "server/metrics/counters.h"

namespace phub::server::exchange {

enum class Step : std::uint8_t {
  kWaits,   // for this rack's ranks, or for other racks
  kTotal,   // home: the sum over all racks is in chunk->accumulator
  kResult,  // the new version is at chunk->NextParameters()
  kFault,   // `rack` broke the protocol, or disagrees
};

struct Verdict {
  Step step = Step::kWaits;
  FaultCode fault = FaultCode::kNone;
  Chunk* chunk = nullptr;  // null: no chunk is concerned
  RackIndex other{};       // kRoundMismatch: whose ranks said otherwise before
};

class ExchangeStage {
 public:
  ExchangeStage(std::span<transport::Transport* const> transports, CoreCounters& counters)
      : transports_(transports), counters_(counters) {}

  void BeginRun(TimeNs now) { now_ = now; }
  // Every own rank's gradient is folded into the chunk's accumulator; of kAssign, the root's
  // payload, if the root is one of them.
  Verdict OnLocalSum(JobShard& shard, Chunk& chunk, bool has_payload);
  Verdict OnMessage(JobShard& shard, RackIndex from, const transport::ReceivedMessage& message);
  // The new version is the chunk's, and chunk.applied has moved on: sends it down the out-tree.
  void PassOn(JobShard& shard, Chunk& chunk);
  // The system has taken the last byte of a message to that rack; `cookie` is the request's.
  void OnSent(JobShard& shard, RackIndex to, std::uint64_t cookie);
  // Posts what found no room before. True if it posted anything.
  bool Flush(JobShard& shard);

 private:
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
  static void NoteWaits(JobShard& shard, RackIndex to, std::uint32_t entry, bool waits);

  const std::span<transport::Transport* const> transports_;
  CoreCounters& counters_;
  TimeNs now_ = 0;                                    // when the loop's run began
  std::array<const std::byte*, kRacksMax> inputs_{};  // scratch of FoldPartials
};

}  // namespace phub::server::exchange
