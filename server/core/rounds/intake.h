// Processes workers' messages up to a whole round: the stages ingest and aggregate, and the
// resulting credits, charges and faults.
//
// Owned by CoreLoop::Impl; loop's thread. Nothing allocates after construction.
#pragma once

#include "server/core/ingest/ingest.h"
#include "server/core/rounds/rounds.h"
#include "server/core/rounds/sum_sequencer.h"

namespace phub::server {

class Intake {
 public:
  Intake(RoundStages& stages, SumSequencer& sums) : stages_(stages), sums_(sums) {}

  // Charges and validates the message. Otherwise it changes only the key's hyper-parameters, for a
  // message that announces some.
  ingest::Verdict Ingest(JobShard& shard, Rank rank, const transport::ReceivedMessage& message);
  // Executes the verdict. Returns the chunk whose round is whole now, or null.
  Chunk* Aggregate(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
                   const transport::ReceivedMessage& message);
  // If lanes were lost: relieves lanes that are full of rounds that wait for the lost ranks again.
  void RelieveLanes();

 private:
  Chunk* OnChunkMessage(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
                        const transport::ReceivedMessage& message);
  Chunk* OnGradient(JobShard& shard, Rank rank, Chunk& chunk,
                    const transport::ReceivedMessage& message);
  void OnDuplicate(JobShard& shard, Rank rank, Chunk& chunk, const wire::MessageHeader& header);
  void OnAsked(JobShard& shard, Rank rank, Chunk& chunk, Iteration version, wire::MessageKind kind);
  void RelieveFullLanes(JobShard& shard, Rank rank, Chunk& chunk);
  void NoteFolded(JobShard& shard, std::size_t credited);
  void Refuse(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
              const wire::MessageHeader& header);

  RoundStages& stages_;
  SumSequencer& sums_;
};

}  // namespace phub::server
