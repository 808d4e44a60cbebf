// Finishes whole rounds: makes the chunk's next version and answers the workers and racks that wait
// for it. The job's policy makes the version (round_stages.h lists the policies); it is chosen when
// the job is added. Publishing a version is the same for all policies.
//
// Owned by CoreLoop::Impl; loop's thread. Nothing allocates after construction.
#pragma once

#include "server/core/rounds/round_stages.h"

namespace phub::server {

class Rounds {
 public:
  Rounds(LoopContext& loop, Outbox& outbox, Turns& turns, reply::ReplyStage& replies,
         exchange::ExchangeStage& exchanges);

  static RoundPolicy PolicyFor(const JobShard& shard);

  // Call when the round is whole and it is the job's turn: exchange, optimize, reply.
  void Finish(JobShard& shard, Chunk& chunk);
  // Handles a message of a peer rack, which may complete a round. The round is not queued, because
  // that rack waits for it, but the job is charged for the message and for the work.
  void OnRackMessage(JobShard& shard, RackIndex rack, const transport::ReceivedMessage& message);

  RoundStages& stages() { return stages_; }

 private:
  Made Make(JobShard& shard, Chunk& chunk);
  TimeNs BeginOfWork(const JobShard& shard) const;
  void Complete(JobShard& shard, Chunk& chunk, Made made, TimeNs begin);
  void Publish(JobShard& shard, Chunk& chunk, Made made);

  RoundStages stages_;
};

}  // namespace phub::server
