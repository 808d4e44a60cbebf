// For administrators: what the core loops do with the rounds of a job (server/core/round_trace.h).
// The caller reads the trace page by page while the core loops write it.
//
// Cost. A trace has memory of fixed size. A job has at most one, and this daemon at most
// kTracesMax. A trace that nobody reads ends after kUnreadMax.
//
// Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "phub/v1/trace.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/job_observer.h"
#include "server/control/jobs/job_table.h"
#include "server/core/round_trace.h"

namespace phub::server {

class JobTraces final : public JobObserver {
 public:
  static constexpr std::size_t kTracesMax = 4;
  static constexpr std::size_t kPerTenantMax = 2;
  static constexpr DurationNs kUnreadMax = 10 * kSecond;
  static constexpr std::size_t kSpansMax = 16384;  // shared by all core loops: 1.25 MiB
  static constexpr std::size_t kSpansPerCoreMin = 1024;
  static constexpr std::size_t kSpansPerPage = 1024;

  JobTraces(Context& context, JobTable& jobs) : context_(context), jobs_(jobs) {}

  void TraceJob(const v1::TraceJobRequest& request, Answer<v1::TraceJobResponse> answer);
  void Check(TimeNs now);
  // The latest time for the next Check().
  TimeNs NextTimer() const;

  void OnOver(Job& job, const absl::Status& why) override;
  void OnKeysRemoved(Job& job) override;
  void OnReleased(Job& job) override;

 private:
  struct Trace {
    std::uint64_t number = 0;
    Job* job = nullptr;
    TimeNs read_at = 0;
    std::vector<std::unique_ptr<RoundTrace>> cores;  // [core]
    // Keys whose names a page had. The list of a group's key ends with its group, so that a later
    // key of the same number is named, too.
    std::map<std::uint32_t, std::weak_ptr<const KeyList>> named;
    std::size_t next_core = 0;  // the next page begins with its spans
    // Set when the core loops were commanded to stop. The memory is theirs until they acknowledge
    // these commands.
    std::vector<Ticket> stops;  // [core]
  };

  absl::StatusOr<Trace*> Begin(Job& job);
  absl::StatusOr<Trace*> Find(const Job& job, std::uint64_t number);
  void End(Trace& trace);
  void FreeStopped();
  void Fill(Trace& trace, v1::TraceJobResponse& page);
  void AddSpan(Trace& trace, std::size_t core, const TracedSpan& span, v1::TraceJobResponse& page);

  Context& context_;
  JobTable& jobs_;
  std::list<Trace> traces_;
  std::uint64_t begun_ = 0;
};

}  // namespace phub::server
