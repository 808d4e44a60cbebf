// Judges the daemons of other racks, for each job that spans racks.
//
// A rack that shares lanes with this one is judged by them, as workers are
// (ranks/lane_liveness.h): core loops measure the silence of each lane, this part decides what it
// means. So a control plane that is stuck or unreachable ends no job.
//
// Racks that share no edge of the job's plan have no lanes, and do not judge each other. The edges
// of a plan connect all racks that take part in it. So a rack that dies has a neighbor that
// notices, and that one ends the job in every rack.
//
// Heartbeats decide:
//   - about a rack whose lanes to this one are not all open, or have no keep-alives, since it is
//     older: after liveness_timeout;
//   - about a rack that closed its lanes after the ranks of all others left: after kLongTimeouts
//     times as long, since its last message may come late.
//
// Nobody judges an aggregator that the plan does not use: it does not have the job.
//
// Owned by RackMessages; under control's lock.
#pragma once

#include <optional>
#include <string>

#include "common/base/clock.h"
#include "server/control/context.h"
#include "server/control/racks/known_racks.h"

namespace phub::server {

class Ending;
class JobTable;
struct Job;
struct RackRun;

class RackLiveness {
 public:
  static constexpr int kLongTimeouts = 30;

  RackLiveness(Context& context, KnownRacks& known, JobTable& jobs, Ending& ending)
      : context_(context), known_(known), jobs_(jobs), ending_(ending) {}

  // Ends the jobs whose other racks are silent.
  void Check(TimeNs now);

 private:
  // What silences a rack, for the job's fault; nullopt if it is not silent.
  std::optional<std::string> Judge(const Job& job, RackIndex rack, TimeNs now);
  std::optional<std::string> JudgeByLanes(const RackRun& run, RackIndex rack, TimeNs now);
  std::optional<std::string> JudgeByHeartbeats(const Job& job, RackIndex rack, DurationNs timeout,
                                               TimeNs now) const;

  Context& context_;
  KnownRacks& known_;
  JobTable& jobs_;
  Ending& ending_;
};

}  // namespace phub::server
