// What a core loop tells control when asked: which rounds wait for which ranks, which versions its
// chunks have, and snapshots of a shard's state. A snapshot is taken over many runs, in the gaps of
// the rounds (checkpoint/shard_checkpoint.h); the loop has at most one for each shard.
//
// Owned by CoreLoop::State; loop's thread. The reports and images are control's.
#pragma once

#include <cstddef>

#include "server/core/job_shard.h"
#include "server/core/loop/context.h"
#include "server/core/loop/outbox.h"

namespace phub::server {

class Reports {
 public:
  Reports(LoopContext& loop, Outbox& outbox) : loop_(loop), outbox_(outbox) {}

  // Fills `report` and answers.
  void ReportStalls(JobShard& shard, StallReport& report);
  void ReportVersions(JobShard& shard, VersionReport& report, Rank asking);
  // Begins a snapshot; the answer comes when it is whole, or at once if it is missed.
  void TakeSnapshot(JobShard& shard, CheckpointImage& image);
  void DropSnapshot(JobShard& shard);
  // Copies a little more of each snapshot that is being taken. True if anything was copied.
  bool AdvanceSnapshots();

 private:
  void AnswerIfWhole(JobShard& shard);

  LoopContext& loop_;
  Outbox& outbox_;
  std::size_t snapshot_count_ = 0;  // shards of which one is being taken
};

}  // namespace phub::server
