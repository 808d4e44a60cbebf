// Sends a core loop's events to control through a bounded queue. Events that find the queue full
// wait here, and the loop does nothing else until they are sent. So the order is kept, no event is
// lost, and the outbox is bounded by the events of one run.
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
  // `capacity`: the most events that one run can report.
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
  // Sends waiting events. True if none is left.
  bool Flush();
  bool empty() const { return waiting_.empty(); }

 private:
  SpscQueue<Event>& events_;
  CoreCounters& counters_;
  const std::size_t capacity_;
  std::vector<Event> waiting_;
};

}  // namespace phub::server
