// What control orders a core loop to do: jobs, keys and lanes come and go here. The cold side of
// the loop.
//
// Owned by CoreLoop::State; loop's thread. Nothing allocates after construction.
#pragma once

#include "common/base/spsc_queue.h"
#include "server/core/commands.h"
#include "server/core/loop/context.h"
#include "server/core/loop/lanes.h"
#include "server/core/loop/outbox.h"
#include "server/core/loop/reports.h"
#include "server/core/loop/turns.h"

namespace phub::server {

inline constexpr std::size_t kCommandsPerRun = 64;  // bounds the work of one run

class Orders {
 public:
  Orders(LoopContext& loop, SpscQueue<Command>& commands, Outbox& outbox, Lanes& lanes,
         Turns& turns, Reports& reports);

  // Executes commands that came. True if there were any.
  bool Execute();
  // Gives back the shards that have ended, once their last lane is closed: nothing lends their
  // memory any more.
  void RetireEndedShards();

 private:
  void Execute(const Command& command);
  void AddJob(JobShard& shard);
  void AddKeys(JobShard& shard, KeyBatch& batch);
  void EndJob(JobShard& shard);

  LoopContext& loop_;
  SpscQueue<Command>& commands_;
  Outbox& outbox_;
  Lanes& lanes_;
  Turns& turns_;
  Reports& reports_;
  bool some_shard_ends_ = false;
};

}  // namespace phub::server
