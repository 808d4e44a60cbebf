// Rounds whose gradients an aggregator between workers and daemon adds up: which chunk is summed at
// which position of the shard's stream, and when its round is whole. The decisions are those of
// aggregation::CoreStream; here its actions become messages and changes of chunks.
//
//   worker                        core loop                            aggregator
//   kAnnounce (exponents)   ->    all have: the chunk waits for a
//                                 position
//                           <-    kAssign (position, greatest exponents)
//   integers                                  ---------------------->  adds
//                                 the accumulator   <----------------  sum of a block
//                                 what is missing   ---------------->  asks the workers for it, or
//                                                                      sends the sum again
//                                 last block: the round is whole
//                                 new parameters    ---------------->  forwards them to all workers
//   kMissing (blocks)       ->    these parameters  ---------------->  forwards them to that worker
// A round that a rank pushes over tcp instead is like any other: ranks that have announced it are
// sent kUseTcp.
//
// Messages are derived from the state when there is room in the transport, so they are never out of
// date: first the stream, then positions in order, then chunks to push over tcp.
//
// Owned by CoreLoop::Impl; loop's thread. Nothing allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "server/core/rounds/round_stages.h"
#include "server/core/shard_sums.h"

namespace phub::server {

class SumSequencer {
 public:
  explicit SumSequencer(RoundStages& stages);
  SumSequencer(const SumSequencer&) = delete;
  SumSequencer& operator=(const SumSequencer&) = delete;

  // --- From control.
  // REQUIRES: the shard has sums with a port, and no stream is open.
  void Open(JobShard& shard, const phub_lease& lease);
  // Nothing happens if none is open.
  void Close(JobShard& shard);

  // --- From workers.
  // REQUIRES: Judge() said kAnnounce.
  void OnAnnounce(JobShard& shard, Rank rank, Chunk& chunk,
                  const transport::ReceivedMessage& message);
  // A rank has pushed the chunk's present round over tcp.
  void OnPushed(JobShard& shard, const Chunk& chunk);
  // The rank has missed blocks of the chunk's version. REQUIRES: Judge() said kSendAgain.
  void OnMissing(JobShard& shard, Rank rank, const Chunk& chunk,
                 const transport::ReceivedMessage& message);

  // The chunk has its next version. Call it for all rounds. If the stream that has summed the round
  // is still open, the ranks get the version as datagrams. If not, every rank pushes the round over
  // tcp, as a duplicate, and its push is answered.
  static void OnPublished(JobShard& shard, const Chunk& chunk, CoreCounters& counters);

  // Receives sums, one batch for each shard, and asks for those that are late. Calls
  // whole(JobShard&, Chunk&) for rounds that are whole. True if there were any sums.
  template <typename Whole>
  bool Poll(Whole&& whole) {
    bool received = false;
    for (JobShard* const shard : stages_.loop.shards) {
      if (Receive(*shard)) {
        received = true;
        while (Chunk* const chunk = TakeWhole(*shard)) whole(*shard, *chunk);
        AssignWaiting(*shard);
      }
      AskAgain(*shard);
    }
    return received;
  }
  // When Poll() has to ask for sums that have not arrived; the maximum if never.
  TimeNs next() const;
  // Posts messages that found no room before. True if it posted any.
  bool Flush(JobShard& shard);

 private:
  bool Receive(JobShard& shard);
  void AskAgain(JobShard& shard);
  void NoteProgress(ShardSums& sums);
  Chunk* TakeWhole(JobShard& shard);
  void OnSum(const aggregation::CoreActions& actions, std::span<const std::int32_t> integers);
  void Fold(Chunk& chunk, std::uint32_t block, std::span<const std::int32_t> integers);
  void Complete(Chunk& chunk);
  void Perform(JobShard& shard);
  void Await(ShardSums& sums, ChunkIndex chunk);
  void AssignWaiting(JobShard& shard);
  void Ask(JobShard& shard, Rank rank, ChunkIndex chunk);
  bool FlushLane(JobShard& shard, Rank rank);
  bool FlushAsks(JobShard& shard);
  bool PostStream(JobShard& shard, Rank rank);
  bool PostAssignment(JobShard& shard, Rank rank, const aggregation::CoreAction& assignment);
  bool PostUseTcp(JobShard& shard, Rank rank, ChunkIndex chunk, Iteration iteration);
  bool Post(JobShard& shard, Rank rank, const wire::MessageHeader& header,
            std::span<const std::byte> payload);

  RoundStages& stages_;
  const SumPort::OnSum on_sum_;
  JobShard* receiving_ = nullptr;  // the shard whose datagrams are handled
  // Chunks of that shard whose rounds are whole. One batch completes at most one for each place.
  std::array<ChunkIndex, 64> whole_{};
  std::size_t whole_count_ = 0;
};

}  // namespace phub::server
