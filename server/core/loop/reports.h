// Answers control's requests: which rounds wait for which ranks, which versions the chunks have,
// and snapshots of a shard's state. A snapshot is taken over many runs, between rounds
// (checkpoint/shard_checkpoint.h); each shard has at most one at a time.
//
// Owned by CoreLoop::Impl; loop's thread. Control owns the reports and images.
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
  // Begins a snapshot. Answers when it is complete, or at once if it is missed.
  void TakeSnapshot(JobShard& shard, CheckpointImage& image);
  void DropSnapshot(JobShard& shard);
  // Continues each snapshot that is being taken. True if any had chunks left to visit.
  bool AdvanceSnapshots();

 private:
  void AnswerIfWhole(JobShard& shard);

  LoopContext& loop_;
  Outbox& outbox_;
  std::size_t snapshot_count_ = 0;  // snapshots that are being taken
};

}  // namespace phub::server
