// Plans of jobs that span racks: chosen by rack 0, verified by every rack that runs one. Owned by
// Control; under control's lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "phub/v1/admin.pb.h"
#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {

class TopologySurvey;

class RackPlans {
 public:
  RackPlans(Context& context, TopologySurvey& survey) : context_(context), survey_(survey) {}

  // At rack 0: fills in the plan that the job requests, and its predicted duration.
  absl::Status ChoosePlan(v1::PeerJob& job);
  // At every rack, including rack 0: each rack verifies the plan that it runs.
  absl::StatusOr<std::unique_ptr<RackRun>> MakeRackRun(
      const v1::PeerJob& job, std::shared_ptr<const plan::Topology> planned_for) const;
  // At rack 0: the plan for a group with members in these racks, a bit for each, as text. The racks
  // exchange as the job does, if its planner can; otherwise along the best plan.
  absl::StatusOr<std::string> PlanForGroup(const RackRun& run, std::uint64_t racks) const;
  // At each of these racks.
  static absl::StatusOr<std::shared_ptr<const exchange::RackPlan>> ReadGroupPlan(
      const RackRun& run, std::uint64_t racks, const std::string& text);
  void DescribeExchange(const Job& job, v1::ExchangeInfo& info) const;

 private:
  // A plan that rack 0 made. The planners' limits do not change while the daemon runs.
  struct MadePlan {
    std::string text;  // phub.plan.v1
    double seconds = 0;
  };

  Context& context_;
  TopologySurvey& survey_;
  std::map<std::string, MadePlan> made_;  // by request: "auto" or a planner's name
  std::uint64_t made_for_ = 0;            // the number of the topology of these plans
};

}  // namespace phub::server
