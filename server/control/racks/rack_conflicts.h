// Ranks of different racks that push one round with different operations, roots or
// hyper-parameters. A partial sum has only a hash of its hyper-parameters, so the daemon that finds
// the difference asks the other racks for the values, and ends the job once it knows them or after
// kAnswerTimeout. Older daemons do not answer. Owned by Control; under control's lock.
#pragma once

#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/job.h"
#include "server/control/jobs/stall_queries.h"

namespace phub::server {

class Ending;
class RackMessages;
struct RackConflict;

class RackConflicts {
 public:
  static constexpr DurationNs kAnswerTimeout = 500 * kMillisecond;

  RackConflicts(Context& context, Ending& ending, StallQueries& stall_queries,
                RackMessages& messages)
      : context_(context), ending_(ending), stall_queries_(stall_queries), messages_(messages) {}

  // A core loop reports kRoundMismatch between racks. Ends the job, at once or later. Ignored while
  // an earlier one waits for an answer.
  void HandleMismatch(Job& job, const Event& event);
  // Another rack asks for the values of a record. Not answered while core loops owe many reports.
  void HandleQuestion(Job& job, RackIndex from, const v1::PeerHyperParametersAsked& asked);
  // Ignored unless its values have the hash of a side that is not known.
  void HandleAnswer(Job& job, const v1::PeerHyperParameters& answer);
  void Check(Job& job, TimeNs now);
  static TimeNs NextTimer(const Job& job);

 private:
  std::string DescribeRanksOf(const Job& job, RackIndex rack) const;
  void Fail(Job& job, const RackConflict& conflict);

  Context& context_;
  Ending& ending_;
  StallQueries& stall_queries_;
  RackMessages& messages_;
};

}  // namespace phub::server
