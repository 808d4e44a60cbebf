// Plans groups around what else exchanges at the same time: the job's own plan and other groups.
// Planners know nothing of each other, so alone they would place the homes and inner members of
// every group's trees at the same members. Here each planner also plans for the members in other
// orders, and of all these candidates the one with the least time next to the others is chosen.
// Pure functions; equal input gives equal output.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

// [link]: the time that it needs for the data of one or more plans, in 1/kLinkTimeUnit of the time
// of all data of one plan on a unit link. Integers, so that taking a plan out again leaves exactly
// what was there before.
using LinkTimes = std::vector<std::int64_t>;
inline constexpr std::int64_t kLinkTimeUnit = std::int64_t{1} << 20;

// REQUIRES: Verify() accepts the forest.
LinkTimes LinkTimesOf(const Topology& topology, const Forest& forest);
void AddTo(LinkTimes& times, const LinkTimes& more);
void TakeFrom(LinkTimes& times, const LinkTimes& less);
std::int64_t Busiest(const LinkTimes& times);

struct GroupPlan {
  Forest forest;
  LinkTimes times;
  double seconds = 0;  // simulated, alone
};

// Plans for all members of the part of a topology that has no other members.
using MakesForest = std::function<absl::StatusOr<Forest>(const Topology& part)>;

struct AroundOptions {
  std::span<const MakesForest> makers;  // the first one's plan is chosen if no other is better
  std::int64_t size_bytes = 1;          // of every plan
  std::uint32_t orders = 8;             // orders of members to try, at most
  std::span<const NodeIndex> aggregators = {};  // switches that may sum; others only forward
};

// One plan for each group. All of them exchange at the same time as plans with the link times
// `others`. REQUIRES: as for PlanForMembers.
absl::StatusOr<std::vector<GroupPlan>> PlanAround(const Topology& topology,
                                                  std::span<const std::vector<NodeIndex>> groups,
                                                  const LinkTimes& others,
                                                  const AroundOptions& options);

}  // namespace phub::plan
