// Plans of jobs that span racks: chosen by rack 0, verified by every rack that runs one. Owned by
// Control; under control's lock.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "phub/v1/admin.pb.h"
#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/racks/rack_run.h"
#include "server/control/racks/racks.h"

namespace phub::server {

class TopologySurvey;

class RackPlans {
 public:
  RackPlans(Context& context, Racks& racks, TopologySurvey& survey)
      : context_(context), racks_(racks), survey_(survey) {}

  // At rack 0: fills in the plan that the job requests, and its predicted duration.
  absl::Status ChoosePlan(v1::PeerJob& job);
  // At every rack, including rack 0: each rack verifies the plan that it runs.
  absl::StatusOr<std::unique_ptr<RackRun>> MakeRackRun(
      const v1::PeerJob& job, std::shared_ptr<const plan::Topology> planned_for) const;
  void DescribeExchange(const Job& job, v1::ExchangeInfo& info) const;

 private:
  Context& context_;
  Racks& racks_;
  TopologySurvey& survey_;
};

}  // namespace phub::server
