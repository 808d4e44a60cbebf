// Last stage: new versions and credits go back to the workers.
//
// A worker that shares memory with the daemon may name a place there for its reply. Such memory is
// filled in the pass that makes the new version (OwnReplies), and the reply only says so.
//
// A whole round is answered at once, unasked, with one request that names every lane that waits
// for it. Replies have a window per lane (replies_per_lane_max posted and not yet sent); a lane
// whose window is full gets a bit in its own bitmap instead, and the reply is posted later from
// the chunk's parameters, which cannot change before that rank has had it: the next version needs
// that rank's next push. Only what a process pulls that took its rank over may be a version behind
// by then, since the one before it had pushed; it has a bitmap of its own. A credit that finds the
// send queue full waits in a list with room for one per slot; what is to be told of a sum, in a
// bitmap of its own. So nothing here grows, and nothing here blocks. Core loop's thread.
#pragma once

#include <array>
#include <span>

#include "common/transport/transport.h"
#include "server/core/job_shard.h"
#include "server/metrics/counters.h"

namespace phub::server::reply {

class ReplyStage {
 public:
  ReplyStage(std::span<transport::Transport* const> transports, CoreCounters& counters);

  // Keeps where the rank wants the chunk's next reply: from its last message about the chunk. False
  // if that is no memory of its own, or misaligned.
  [[nodiscard]] bool NoteReplyAddress(const JobShard& shard, Chunk& chunk, Rank rank,
                                      SharedAddress address);
  // The memory that ranks who wait for this round have named. Valid until the next call.
  std::span<std::byte* const> OwnReplies(const JobShard& shard, const Chunk& chunk);
  // Sends the chunk's current version to every rank whose wants_reply bit is set, and clears the
  // bits. REQUIRES: what OwnReplies named has been filled.
  void Answer(JobShard& shard, Chunk& chunk);
  // The chunk has got a new version: what waits to be sent of the one before stays that one. Before
  // Answer.
  void KeepVersions(JobShard& shard, const Chunk& chunk);
  // Says that the chunk is summed, and so that its slot is free: to every rank that waits for the
  // reply, or to one. What the queue has no room for is said later.
  void TellSummed(JobShard& shard, const Chunk& chunk);
  void TellSummed(JobShard& shard, const Chunk& chunk, Rank rank);
  // Sends one version that is kept to one rank, once the tenant's bandwidth allows.
  void AnswerOne(JobShard& shard, Chunk& chunk, Rank rank, Iteration version);
  // Gives a staging slot back, once the tenant's bandwidth allows. False if the rank has more
  // credits waiting than slots, which only a peer that ignores credits can bring about.
  [[nodiscard]] bool Credit(JobShard& shard, Rank rank, ChunkIndex chunk, SlotIndex slot);
  // A reply has left the lane's window.
  void OnSent(JobShard& shard, Rank rank);
  // Posts what waits and now finds room; nothing while the tenant is over its bandwidth. True if it
  // posted anything.
  bool Flush(JobShard& shard);
  // The lane is gone, and with it all that waited for it.
  void Forget(JobShard& shard, Rank rank);

 private:
  bool HasWindow(const JobShard& shard, const Lane& lane) const;
  void Defer(JobShard& shard, Lane& lane, const Chunk& chunk, Iteration version);
  std::byte* OwnReply(const Lane& lane, const Chunk& chunk, SharedAddress address) const;
  bool PostReply(JobShard& shard, const Chunk& chunk, Iteration version, const std::byte* payload,
                 std::uint8_t transport_index, std::span<const transport::ConnectionId> connections,
                 SharedAddress reply_address);
  bool PostTo(JobShard& shard, const Chunk& chunk, Rank rank, Iteration version);
  bool PostCredit(JobShard& shard, const Lane& lane, ChunkIndex chunk, SlotIndex slot);
  void SendToGroup(JobShard& shard, Chunk& chunk, std::uint8_t transport_index);
  void SendToRank(JobShard& shard, Chunk& chunk, Rank rank, Iteration version);
  bool FlushCredits(JobShard& shard, Lane& lane);
  static void DropCredit(JobShard& shard, Lane& lane, ChunkIndex chunk);
  bool FlushReplies(JobShard& shard, Rank rank);
  bool PostSummed(JobShard& shard, const Chunk& chunk, std::uint8_t transport_index,
                  std::span<const transport::ConnectionId> connections);
  void DeferSummed(JobShard& shard, Lane& lane, const Chunk& chunk);
  bool FlushSummed(JobShard& shard, Lane& lane);

  const std::span<transport::Transport* const> transports_;
  CoreCounters& counters_;
  std::array<transport::ConnectionId, kRanksMax> connections_;  // scratch of groups
  std::array<std::byte*, kRanksMax> own_replies_;               // scratch of OwnReplies
};

}  // namespace phub::server::reply
