// Describes jobs to administrators. The ranks of a large job are described in several turns, so a
// description shows each rank as it was in its turn. Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "phub/v1/admin.pb.h"
#include "server/control/admin/metrics.h"
#include "server/control/admin/stall_reports.h"
#include "server/control/context.h"
#include "server/control/jobs/job_table.h"
#include "server/control/racks/rack_plans.h"

namespace phub::server {

// A job's description while it is being made.
struct JobDescription {
  bool begun = false;
  v1::JobInfo info;              // with the ranks described so far
  std::uint64_t last_group = 0;  // the id of the last group that is described
  std::uint32_t lost_next = 0;   // lost ranks of other racks from this one on are not described yet
};

class JobDescriptions {
 public:
  JobDescriptions(Context& context, JobTable& jobs, Metrics& metrics, RackPlans& plans,
                  StallReports& stall_reports, TenantTotals& totals)
      : context_(context),
        jobs_(jobs),
        metrics_(metrics),
        plans_(plans),
        stall_reports_(stall_reports),
        totals_(totals) {}

  // Describes ranks while this turn's budget (TurnBudget::ranks) lasts, at least one rank or the
  // job itself. False: call again with the same run of the job, in another turn.
  bool DescribeMore(const Job& job, JobDescription& description);

  // Describes the job in as many turns as it needs. False: the run was forgotten in the meantime,
  // and some ranks are missing.
  using Done = std::function<void(bool complete, v1::JobInfo)>;
  void Describe(const Job& job, Done done);

 private:
  void Continue(const Job& job, const std::shared_ptr<JobDescription>& description, Done done);
  v1::JobInfo DescribeRun(const Job& job) const;  // without ranks
  static void DescribeGroup(const Group& group, v1::GroupInfo& info);
  v1::WorkerInfo DescribeRank(const Job& job, std::uint32_t rank, TimeNs now) const;
  std::string ReasonOf(const Job& job, std::string_view lane) const;

  Context& context_;
  JobTable& jobs_;
  Metrics& metrics_;
  RackPlans& plans_;
  StallReports& stall_reports_;
  TenantTotals& totals_;
};

}  // namespace phub::server
