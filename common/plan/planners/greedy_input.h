// What the planner greedy knows about a topology before it grows trees: the paths between members,
// in classes that wait for the same links, and its symmetry. Pure; any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/planners/member_paths.h"
#include "common/plan/planners/symmetry.h"
#include "common/plan/sketches/sketch_rules.h"
#include "common/plan/topology.h"

namespace phub::plan {

inline constexpr std::size_t kGreedyPathsMax = std::size_t{1} << 18;
// The limit of the candidates of one start with one tree per member.
inline constexpr std::size_t kGreedyWorkMax = std::size_t{1} << 22;

// Paths with the same cost over the same orbits of links. All wait for the same links.
struct PathClass {
  double seconds_per_byte = 0;
  double latency_s = 0;
  std::vector<std::uint32_t> orbits;
  auto operator<=>(const PathClass&) const = default;
};

struct ClassedPath {
  std::uint32_t to = 0;  // rank
  std::uint32_t class_index = 0;
  Path links;
};

// One phase. Trees grow away from their homes, so for the reduce phase the topology is reversed.
struct GreedyInput {
  // Fails if a symmetry that the rules declare is not one. `rules` may be null.
  static absl::StatusOr<GreedyInput> Of(const Topology& topology, const SketchRules* rules,
                                        bool reduces);

  // Whether the rules allow the transfer in the direction in which trees grow. Ranks.
  bool MaySend(std::uint32_t from, std::uint32_t to) const {
    return rules == nullptr || (reduces ? rules->MaySend(to, from) : rules->MaySend(from, to));
  }
  bool MayCarry(std::uint32_t home, std::uint32_t from, std::uint32_t to) const {
    return rules == nullptr || (reduces ? rules->MayCarry(home, to, from, true)
                                        : rules->MayCarry(home, from, to, false));
  }
  // Whether the transfer must come before those of other homes.
  bool MustBeFirst(std::uint32_t home, std::uint32_t from, std::uint32_t to) const {
    return rules != nullptr && rules->own_first && home == from && rules->IsCrossing(from, to);
  }
  // Candidates of one start with one tree per member.
  std::size_t Work() const { return symmetry.representatives.size() * path_count; }
  // If not, some paths are missing.
  bool IsWithinLimits() const { return path_count <= kGreedyPathsMax && Work() <= kGreedyWorkMax; }
  absl::Status CheckLimits(std::uint32_t trees_per_member) const;

  const Topology* topology = nullptr;
  const SketchRules* rules = nullptr;
  bool reduces = false;
  Symmetry symmetry;
  std::vector<std::vector<ClassedPath>> paths;  // by rank of the sender
  std::vector<bool> is_relay;                   // by rank: it sends to other groups of the rules
  std::size_t path_count = 0;
  std::vector<PathClass> classes;
};

}  // namespace phub::plan
