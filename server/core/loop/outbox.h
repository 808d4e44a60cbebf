// A core loop's reports to control. Events go to a bounded queue; those that find it full wait here
// for the next run, which does nothing else until they are gone. So the order is kept, nothing is
// lost, and the outbox is bounded by what one run can report.
//
// Owned by CoreLoop::State; loop's thread. Nothing allocates after construction.
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
  // The first fault of a shard stops it: control ends the job and tells every rank. Others are
  // dropped. `event` needs no kind.
  void Fault(Event event);
  // Counts a message that was refused for that reason.
  void CountRefusal(FaultCode code);
  // The first sum of a shard that is not finite, if there is one and it was not reported: an event,
  // or the end of the job.
  void ReportNonFinite(JobShard& shard);
  // Sends what waits. True if nothing is left.
  bool Flush();
  bool empty() const { return waiting_.empty(); }

 private:
  SpscQueue<Event>& events_;
  CoreCounters& counters_;
  const std::size_t capacity_;
  std::vector<Event> waiting_;
};

}  // namespace phub::server
