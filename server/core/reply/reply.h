// Last stage: sends new versions and credits to the workers.
//
// A worker that shares memory with the daemon may name an address there for its reply. The pass
// that makes the new version also writes that memory (OwnReplies), and the reply message only
// reports it.
//
// If a chunk has one receiver (KeyParts), only that rank receives payload. The other ranks receive
// the message alone, and the addresses that they name are ignored.
//
// A whole round is answered at once, with one request for all lanes that wait for it. Nothing here
// blocks or grows, because messages that cannot be sent wait in memory of fixed size:
//   reply    Each lane has a window (replies_per_lane_max posted and not yet sent, fewer of lower
//            priority classes: window.h). If it is full, the chunk's bit is set in the lane's
//            bitmap, and the reply is posted later from the chunk's parameters. These cannot change
//            before the rank has the reply, because the next version needs the rank's next push.
//   reply with the previous version
//            A process that took over a rank may pull a version that is not current any more when
//            the reply is posted, because its predecessor had already pushed. It has another
//            bitmap.
//   credit   waits in a list with room for one per slot
//   kSummed  waits in a bitmap of its own
// Core loop's thread.
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

  // Stores the reply address of the rank's last message about the chunk, which has this header.
  // False if it is not in the rank's memory, or is misaligned.
  [[nodiscard]] bool NoteReplyAddress(const JobShard& shard, Chunk& chunk, Rank rank,
                                      const wire::MessageHeader& header);
  // The memory that the ranks that wait for this round have named. Valid until the next call.
  std::span<std::byte* const> OwnReplies(const JobShard& shard, const Chunk& chunk);
  // Whether a reply of the last OwnReplies() will be written where a gradient is that is staged in
  // place: a worker may receive the result where its gradient is.
  bool own_replies_overwrite() const { return own_replies_overwrite_; }
  // Sends the chunk's current version to every rank whose wants_reply bit is set, and clears the
  // bits. REQUIRES: the memory from OwnReplies has been written.
  void Answer(JobShard& shard, Chunk& chunk);
  // Call when the chunk has a new version, before Answer: waiting replies with the version before
  // keep that version.
  void KeepVersions(JobShard& shard, const Chunk& chunk);
  // Sends that the chunk is summed, and so that its slot is free, to every rank that waits for the
  // reply, or to one. Messages that find the queue full are sent later.
  void TellSummed(JobShard& shard, const Chunk& chunk);
  void TellSummed(JobShard& shard, const Chunk& chunk, Rank rank);
  // Sends one of the kept versions to one rank, once the tenant's bandwidth allows it.
  void AnswerOne(JobShard& shard, Chunk& chunk, Rank rank, Iteration version);
  // Returns a staging slot to the rank, once the tenant's bandwidth allows it. False if the rank
  // has more credits waiting than slots, which happens only if the worker ignores credits.
  [[nodiscard]] bool Credit(JobShard& shard, Rank rank, ChunkIndex chunk, SlotIndex slot);
  // A reply was sent, so the lane's window has room for another.
  void OnSent(JobShard& shard, Rank rank);
  // Posts waiting messages that find room; none while the tenant is over its bandwidth. True if it
  // posted any.
  bool Flush(JobShard& shard);
  // The lane was lost: drops all messages that wait for it.
  void Forget(JobShard& shard, Rank rank);

 private:
  void Defer(JobShard& shard, Lane& lane, const Chunk& chunk, Iteration version);
  std::byte* OwnReply(const Lane& lane, SharedAddress address, std::uint32_t bytes) const;
  // payload: chunk.reply_bytes() bytes, or null for a reply without payload
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
  // Those of one priority class.
  bool FlushLevel(JobShard& shard, Rank rank, std::size_t level);
  bool PostSummed(JobShard& shard, const Chunk& chunk, std::uint8_t transport_index,
                  std::span<const transport::ConnectionId> connections);
  void DeferSummed(JobShard& shard, Lane& lane, const Chunk& chunk);
  bool FlushSummed(JobShard& shard, Lane& lane);

  const std::span<transport::Transport* const> transports_;
  CoreCounters& counters_;
  std::array<transport::ConnectionId, kRanksMax> connections_;  // scratch space for groups
  std::array<std::byte*, kRanksMax> own_replies_;               // scratch space for OwnReplies
  bool own_replies_overwrite_ = false;
};

}  // namespace phub::server::reply
