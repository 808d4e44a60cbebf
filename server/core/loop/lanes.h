// The lanes of one core loop: which connection is whose, and how a lane begins and ends.
//
// A worker has one lane to the loop at a time. When it opens another before its old lane is seen
// lost, the old one is replaced: it only closes, and what it still says is ignored. A peer rack has
// one lane, for as long as the job runs; its loss ends the job.
//
// Invariants: a rank's lane is open exactly while one current row of a table is its own;
// JobShard::lanes_open is the number of rows that are the shard's.
//
// Owned by CoreLoop::State; loop's thread. Nothing allocates after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "server/core/commands.h"
#include "server/core/exchange/shard_exchange.h"
#include "server/core/loop/context.h"
#include "server/core/loop/lane_table.h"
#include "server/core/loop/outbox.h"
#include "server/core/reply/reply.h"

namespace phub::server {

class Lanes {
 public:
  Lanes(LoopContext& loop, Outbox& outbox, reply::ReplyStage& replies);

  // Whose lane it is; null if it is not (or no longer) one.
  const LaneTable::Place* Find(std::uint8_t transport_index, transport::ConnectionId id) const {
    return tables_[transport_index].Find(id);
  }
  // Takes over the connection of a kAttachLane.
  void Attach(const Command& command);
  // The transport has let go of a connection.
  void OnClosed(std::uint8_t transport_index, const transport::Completion& completion);
  // The job ends: all its lanes are closed in order.
  void CloseAll(JobShard& shard);
  // Whether the transports leave what the job's workers send unread.
  void Hold(const JobShard& shard, bool held);
  // L1, L2 of docs/internals/invariants.md.
  void CheckInvariants() const;

 private:
  transport::ConnectionId Adopt(const Command& command, bool wanted,
                                std::span<const transport::LandingSlot> landing);
  void AttachWorker(const Command& command);
  void AttachRack(const Command& command);
  void OnWorkerClosed(const LaneTable::Place& place, const transport::Completion& completion);
  void OnRackClosed(const LaneTable::Place& place, const transport::Completion& completion);
  void LoseLane(JobShard& shard, Rank rank);
  void CheckPlace(const JobShard& shard, std::uint8_t transport_index, transport::ConnectionId id,
                  LaneOwner owner) const;

  LoopContext& loop_;
  Outbox& outbox_;
  reply::ReplyStage& replies_;
  std::vector<LaneTable> tables_;  // [transport]
};

}  // namespace phub::server
