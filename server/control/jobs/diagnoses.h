// What is wrong with a job, in words: a rank that died, fell silent or broke the protocol. Before a
// job fails over a rank that is lost, core loops are asked for a short, bounded time which key
// waits for it. Owned by Control; under control's lock.
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
  // Fails the job once the answer is there, or its time is over. Nothing without a diagnosis.
  void AdvanceDiagnosis(Job& job, TimeNs now);
  // Fails the job with what is known now. REQUIRES: job.diagnosis.
  void ConcludeDiagnosis(Job& job);

  void FailOverCoreFault(Job& job, CoreIndex core, const Event& event);
  // The job's first sum that is not finite is logged and remembered; others are only counted.
  void NoteNonFinite(Job& job, const Event& event);
  // A worker says that the job has ended at another daemon of its rack.
  void EndByVerdict(Job& job, Rank rank, const std::string& verdict);

 private:
  std::string DescribeAbsence(const Job& job, Rank rank) const;

  Context& context_;
  Ending& ending_;
  StallQueries& stall_queries_;
};

}  // namespace phub::server
