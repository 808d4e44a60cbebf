// Plans of jobs that span racks: chosen by rack 0, verified by every rack that runs one. Owned by
// Control; under control's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/around.h"
#include "phub/v1/admin.pb.h"
#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {

class TopologySurvey;

// What the plan for a group is made from. Needs no lock: making and reading plans takes time.
struct GroupPlanning {
  std::shared_ptr<const plan::Topology> topology;
  std::string planner;               // that the job asked for
  std::vector<std::uint64_t> racks;  // [group]: a bit per rack with members
  std::uint64_t aggregators = 0;     // a bit per aggregator that may take part
  std::string job_plan;              // that of the job's keys
  plan::LinkTimes groups;            // plans of the job's other groups
};
// Units of work (turn_budget.h): each takes longer than a turn may.
inline constexpr std::size_t kGroupPlanUnits = 1024;
GroupPlanning StartGroupPlanning(const RackRun& run, std::vector<std::uint64_t> racks);
// At rack 0: a plan for each group, made together and around the plans of the job and of its other
// groups, as if all had equal data. The racks of a group exchange as the job does, if its planner
// can; otherwise along the best plans. Aggregators that have the job may sum. Any thread.
absl::StatusOr<std::vector<GroupPlanText>> PlanForGroups(const GroupPlanning& planning);
// At each rack and aggregator of a group. Any thread.
struct GroupPlanReading {
  std::shared_ptr<const plan::Topology> topology;
  std::uint64_t racks = 0;        // a bit per rack with members
  std::uint64_t aggregators = 0;  // a bit per aggregator that may take part
  RackIndex self{};
};
GroupPlanReading StartReadingGroupPlan(const RackRun& run, std::uint64_t racks);
absl::StatusOr<std::shared_ptr<const exchange::RackPlan>> ReadGroupPlan(
    const GroupPlanReading& reading, const std::string& text);

class RackPlans {
 public:
  RackPlans(Context& context, TopologySurvey& survey) : context_(context), survey_(survey) {}

  // At rack 0: fills in the plan that the job requests, and its predicted duration.
  absl::Status ChoosePlan(v1::PeerJob& job);
  // At every rack, including rack 0: each rack verifies the plan that it runs.
  absl::StatusOr<std::unique_ptr<RackRun>> MakeRackRun(
      const v1::PeerJob& job, std::shared_ptr<const plan::Topology> planned_for) const;
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
