// The lanes of one core loop: the owner of each connection, and attaching and closing lanes.
//
// A worker has one lane to the loop at a time. If it opens another before the loss of its old lane
// is detected, the new lane replaces the old one: the old one only closes, and its late messages
// are ignored. A peer rack has one lane as long as the job runs; its loss ends the job.
//
// Invariants: a rank's lane is open exactly while the tables have one current row for it;
// JobShard::lanes_open is the number of the shard's rows.
//
// Owned by CoreLoop::Impl; loop's thread. Nothing allocates after construction.
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

class LoopLanes {
 public:
  LoopLanes(LoopContext& loop, Outbox& outbox, reply::ReplyStage& replies);

  // The lane of a connection; null if it does not (or no longer) belong to a lane.
  const LaneTable::Place* Find(std::uint8_t transport_index, transport::ConnectionId id) const {
    return tables_[transport_index].Find(id);
  }
  // Takes over the connection of a kAttachLane.
  void Attach(const Command& command);
  // The transport has closed and released a connection.
  void OnClosed(std::uint8_t transport_index, const transport::Completion& completion);
  // The job ends: closes all its lanes normally.
  void CloseAll(JobShard& shard);
  // Makes the transports stop reading (held) or read again from the job's workers.
  void Hold(const JobShard& shard, bool held);
  // The shard has got or lost keys. While they have several priority classes, the kernel may hold
  // only a little that the job's lanes have not sent: what it holds cannot be overtaken. For lanes
  // to racks the classes of the keys count that racks exchange.
  static void LimitUnsent(JobShard& shard);
  // Checks L1 and L2 of docs/internals/invariants.md.
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
