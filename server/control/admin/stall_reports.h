// For administrators: which rounds of a job are waiting, for which ranks and since when. Another
// thread merges the reports of the core loops, and an answer is made in turns, so that many ranks
// do not hold the lock for long. Owned by Control; under control's lock.
#pragma once

#include <memory>
#include <string>

#include "phub/v1/admin.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/stall_queries.h"

namespace phub::server {

class StallReports {
 public:
  StallReports(Context& context, JobTable& jobs, StallQueries& stall_queries)
      : context_(context), jobs_(jobs), stall_queries_(stall_queries) {}

  void ListStalls(const v1::ListStallsRequest& request, Answer<v1::ListStallsResponse> answer);
  // The lane's description, such as "tcp 10.0.0.5:40112", or the reason why there is no lane.
  std::string DescribeLane(const Member& member, CoreIndex core) const;

 private:
  struct Round;        // one of an answer
  struct Description;  // an answer in the making

  void DescribeRank(const Job& job, std::uint32_t rank, CoreIndex core, TimeNs now,
                    v1::StalledRank& described) const;
  static void DescribePushed(const Job& job, const Round& round, v1::Stall& described);
  // False: the turn's work is done.
  bool DescribeMore(const Job& job, Description& description) const;
  void Continue(const std::shared_ptr<Description>& description);

  Context& context_;
  JobTable& jobs_;
  StallQueries& stall_queries_;
};

}  // namespace phub::server
