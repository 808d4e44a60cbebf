// Executes control's commands: adds and removes jobs, keys and lanes. Not on the hot path.
//
// Owned by CoreLoop::Impl; loop's thread. Nothing allocates after construction.
#pragma once

#include "common/base/spsc_queue.h"
#include "server/core/commands.h"
#include "server/core/key_remover.h"
#include "server/core/loop/context.h"
#include "server/core/loop/lanes.h"
#include "server/core/loop/outbox.h"
#include "server/core/loop/reports.h"
#include "server/core/loop/turns.h"
#include "server/core/rounds/sum_sequencer.h"

namespace phub::server {

inline constexpr std::size_t kCommandsPerRun = 64;  // bounds the work of one run

class Orders {
 public:
  Orders(LoopContext& loop, SpscQueue<Command>& commands, Outbox& outbox, LoopLanes& lanes,
         Turns& turns, Reports& reports, KeyRemover& remover, SumSequencer& sums);

  // Executes waiting commands. True if there were any.
  bool Execute();
  // Returns ended shards to control once their last lane is closed, so that no transport uses their
  // memory any more.
  void RetireEndedShards();

 private:
  void Execute(const Command& command);
  void AddJob(JobShard& shard);
  void AddKeys(JobShard& shard, KeyBatch& batch);
  static void AddKey(JobShard& shard, ShardKey& key);
  void EndJob(JobShard& shard);

  LoopContext& loop_;
  SpscQueue<Command>& commands_;
  Outbox& outbox_;
  LoopLanes& lanes_;
  Turns& turns_;
  Reports& reports_;
  KeyRemover& remover_;
  SumSequencer& sums_;
  bool some_shard_ends_ = false;
};

}  // namespace phub::server
