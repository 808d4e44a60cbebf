// Sends a core loop's events to control through a bounded queue. Events that find the queue full
// wait here, in order, while the loop continues: control that is late must not stop training. Each
// event belongs to a lane, a shard or a report, and control bounds the number of these
// (commands.h). So there is room for every event, and none is lost.
//
// Owned by CoreLoop::Impl; loop's thread. Nothing allocates after construction.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/spsc_queue.h"
#include "server/core/commands.h"
#include "server/core/job_shard.h"
#include "server/metrics/counters.h"

namespace phub::server {

class Outbox {
 public:
  // `capacity`: the most events that control may leave untaken. Reserves memory for them, which
  // gets pages only when it is used.
  Outbox(SpscQueue<Event>& events, CoreCounters& counters, std::size_t capacity);

  void Emit(const Event& event);
  // Reports the first fault of a shard and stops the shard; control ends the job and notifies every
  // rank. Further faults are dropped. `event` needs no kind.
  void Fault(Event event);
  // Counts a message that was refused for that reason.
  void CountRefusal(FaultCode code);
  // Reports the first sum of the shard that is not finite, unless it was reported: as an event, or
  // as a fault if the job rejects such sums.
  void ReportNonFinite(JobShard& shard);
  void Flush();  // sends waiting events

 private:
  SpscQueue<Event>& events_;
  CoreCounters& counters_;
  const std::size_t capacity_;
  std::vector<Event> waiting_;  // from first_ on
  std::size_t first_ = 0;
};

}  // namespace phub::server
