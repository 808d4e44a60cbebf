// The end of a round's way: a whole round becomes the chunk's next version, and everybody who
// waits for it is answered. How the version is made is the policy of the job (round_stages.h lists
// them), chosen when the job is added; what a new version entails is the same for all.
//
// Owned by CoreLoop::State; loop's thread. Nothing allocates after construction.
#pragma once

#include "server/core/rounds/round_stages.h"

namespace phub::server {

class Rounds {
 public:
  Rounds(LoopContext& loop, Outbox& outbox, Turns& turns, reply::ReplyStage& replies,
         exchange::ExchangeStage& exchanges);

  static RoundPolicy PolicyFor(const JobShard& shard);

  // The round is whole, and it is the job's turn: exchange, optimize, reply.
  void Finish(JobShard& shard, Chunk& chunk);
  // What a peer rack sent, which may be the last that a round waited for. It is not put off, since
  // that rack waits for it; but it is charged: as what workers send, and for the work it causes.
  void OnRackMessage(JobShard& shard, RackIndex rack, const transport::ReceivedMessage& message);

  RoundStages& stages() { return stages_; }

 private:
  Made Make(JobShard& shard, Chunk& chunk);
  void Publish(JobShard& shard, Chunk& chunk, Made made);

  RoundStages stages_;
};

}  // namespace phub::server
