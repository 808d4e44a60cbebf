// What workers send, up to a whole round: the stages ingest and aggregate, and what they mean for
// credits, accounts and faults.
//
// Owned by CoreLoop::State; loop's thread. Nothing allocates after construction.
#pragma once

#include "server/core/ingest/ingest.h"
#include "server/core/rounds/rounds.h"

namespace phub::server {

class Intake {
 public:
  explicit Intake(RoundStages& stages) : stages_(stages) {}

  // Charges the message and says what it means. Changes nothing but the account and, of a record,
  // the key's records.
  ingest::Verdict Ingest(JobShard& shard, Rank rank, const transport::ReceivedMessage& message);
  // Does what the verdict says. The chunk whose round is whole now, or null.
  Chunk* Aggregate(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
                   const transport::ReceivedMessage& message);
  // After lanes were lost, if any were: no lane stays full for a round that waits for its rank
  // again.
  void RelieveAfterLosses();

 private:
  Chunk* OnChunkMessage(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
                        const transport::ReceivedMessage& message);
  Chunk* OnGradient(JobShard& shard, Rank rank, Chunk& chunk,
                    const transport::ReceivedMessage& message);
  void OnDuplicate(JobShard& shard, Rank rank, Chunk& chunk, const wire::MessageHeader& header);
  void OnAsked(JobShard& shard, Rank rank, Chunk& chunk, Iteration version, wire::MessageKind kind);
  void RelieveFullLanes(JobShard& shard, Rank rank, Chunk& chunk);
  void NoteFolded(JobShard& shard, std::size_t credited);
  void CountRound(JobShard& shard, Rank last, const Chunk& chunk);
  void Refuse(JobShard& shard, Rank rank, const ingest::Verdict& verdict,
              const wire::MessageHeader& header);

  RoundStages& stages_;
};

}  // namespace phub::server
