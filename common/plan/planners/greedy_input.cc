#include "common/plan/planners/greedy_input.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

constexpr std::size_t kPathsPerPair = 8;

using KnownClasses = std::map<PathClass, std::uint32_t>;

// Skips paths that use two links of one orbit: equivalent transfers would collide.
void Add(const GreedyInput& input, MemberPath path, KnownClasses& known,
         std::vector<ClassedPath>& list) {
  PathClass path_class;
  for (const LinkIndex link : path.links) {
    const std::uint32_t orbit = input.symmetry.orbit_of[link.value];
    if (std::find(path_class.orbits.begin(), path_class.orbits.end(), orbit) !=
        path_class.orbits.end())
      return;
    path_class.orbits.push_back(orbit);
    path_class.seconds_per_byte =
        std::max(path_class.seconds_per_byte,
                 input.symmetry.uses[link.value] / input.topology->BytesPerSecond(link));
    path_class.latency_s += static_cast<double>(input.topology->link(link).latency_ns) * 1e-9;
  }
  const auto index = static_cast<std::uint32_t>(known.size());
  const auto found = known.try_emplace(std::move(path_class), index).first;
  list.push_back({path.to, found->second, std::move(path.links)});
}

}  // namespace

absl::StatusOr<GreedyInput> GreedyInput::Of(const Topology& topology, const SketchRules* rules,
                                            bool reduces) {
  GreedyInput input;
  input.topology = &topology;
  input.rules = rules;
  input.reduces = reduces;
  if (rules == nullptr) {
    input.symmetry = FindSymmetry(topology);
  } else {
    absl::StatusOr<Symmetry> symmetry = SymmetryUnder(topology, *rules);
    if (!symmetry.ok()) return symmetry.status();
    input.symmetry = *std::move(symmetry);
  }
  KnownClasses known;
  for (std::uint32_t from = 0; from < topology.members().size() && input.IsWithinLimits(); ++from) {
    std::vector<ClassedPath>& classed = input.paths.emplace_back();
    for (MemberPath& path : MemberPaths(topology, from, kPathsPerPair))
      if (input.MaySend(from, path.to)) Add(input, std::move(path), known, classed);
    input.path_count += classed.size();
    input.is_relay.push_back(
        rules != nullptr &&
        std::any_of(classed.begin(), classed.end(),
                    [&](const ClassedPath& path) { return rules->IsCrossing(from, path.to); }));
  }
  input.classes.resize(known.size());
  for (const auto& [path_class, index] : known) input.classes[index] = path_class;
  return input;
}

absl::Status GreedyInput::CheckLimits(std::uint32_t trees_per_member) const {
  const std::size_t members = topology->members().size();
  if (2 * members * (members - 1) * trees_per_member > kEdgesMax)
    return absl::FailedPreconditionError(
        fmt::format("{} members with {} tree(s) each need more than {} edges", members,
                    trees_per_member, kEdgesMax));
  if (IsWithinLimits() && Work() * trees_per_member <= kGreedyWorkMax) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("at least {} paths between {} members (limit {}), times {} members that are "
                  "not equivalent, is {} (limit {})",
                  path_count, members, kGreedyPathsMax, symmetry.representatives.size(), Work(),
                  kGreedyWorkMax));
}

}  // namespace phub::plan
