// The state that all parts of one core loop share: the clock, the transports, the counters and the
// list of shards. One object for each loop, owned by CoreLoop::Impl.
//
// Threads: only the loop's, except that other threads read the counters.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/transport/transport.h"
#include "server/core/job_shard.h"
#include "server/core/long_work.h"
#include "server/metrics/counters.h"

namespace phub::server {

inline constexpr std::size_t kTransportsMax = 8;
inline constexpr std::size_t kShardsMax = 1024;

struct LoopContext {
  LoopContext(CoreIndex core_index, const Clock& the_clock,
              std::span<transport::Transport* const> the_transports)
      : core(core_index),
        clock(the_clock),
        transports(the_transports.begin(), the_transports.end()) {
    PHUB_CHECK(!transports.empty() && transports.size() <= kTransportsMax);
    shards.reserve(kShardsMax);
  }

  const CoreIndex core;
  const Clock& clock;
  const std::vector<transport::Transport*> transports;
  CoreCounters counters;
  TimeNs now = 0;                 // when this run began
  std::vector<JobShard*> shards;  // never grows beyond kShardsMax
  LongWork* long_work = nullptr;  // set by the loop
  bool relief_due = false;        // Intake::RelieveLanes() has work
};

}  // namespace phub::server
