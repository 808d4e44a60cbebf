// Describes why a job fails: a rank died, went silent or violated the protocol. Before a job fails
// because of a lost rank, the core loops are queried for the key that waits for the rank. The query
// has a short timeout. Owned by Control; under control's lock.
#pragma once

#include <string>

#include "server/control/context.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/stall_queries.h"

namespace phub::server {

class Diagnoses {
 public:
  Diagnoses(Context& context, Ending& ending, StallQueries& stall_queries)
      : context_(context), ending_(ending), stall_queries_(stall_queries) {}

  void BeginDiagnosis(Job& job, Diagnosis diagnosis);
  // Fails the job when the query is answered or timed out. Does nothing without a diagnosis.
  void AdvanceDiagnosis(Job& job, TimeNs now);
  // Fails the job with the details known so far. REQUIRES: job.diagnosis.
  void ConcludeDiagnosis(Job& job);

  void FailOverCoreFault(Job& job, CoreIndex core, const Event& event);
  // Logs and records the first sum of the job that is not finite. Later ones are only counted.
  void NoteNonFinite(Job& job, const Event& event);
  // A worker reported that the job has ended at another daemon of its rack.
  void EndByVerdict(Job& job, Rank rank, const std::string& verdict);

 private:
  std::string DescribeAbsence(const Job& job, Rank rank) const;

  Context& context_;
  Ending& ending_;
  StallQueries& stall_queries_;
};

}  // namespace phub::server
