// Groups of members whose exchanges run at the same time, as in the training of one model: tensor
// (model), pipeline and data parallelism. Pure; any thread.
//
// A *phase* is the set of all groups of one kind. The groups of a phase exchange at the same time
// and must be disjoint. Different phases take turns, so a member can have a group in each phase.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/topology.h"

namespace phub::plan {

inline constexpr std::size_t kGroupsMax = 16384;
inline constexpr std::size_t kGroupsTextBytesMax = std::size_t{4} << 20;

enum class Phase : std::uint8_t { kTensor, kPipeline, kData };
inline constexpr std::array kPhases = {Phase::kTensor, Phase::kPipeline, Phase::kData};
std::string_view PhaseName(Phase phase);  // "tensor" "pipeline" "data"

struct Group {
  std::string name;  // unique; letters, digits, '.', '_' and '-'
  Phase phase = Phase::kData;
  std::vector<std::uint32_t> ranks;  // ascending, at least two
  std::int64_t bytes = 0;            // every member has all of them
};

struct Parallelism {
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t data = 1;
};

// Places tensor groups on consecutive ranks, then pipeline stages, then data replicas: member t of
// stage p of replica d has rank (d * pipeline + p) * tensor + t. Kinds of parallelism of degree 1
// have no groups. Fails if a degree is below 1, if all are 1, or if there are too few members.
absl::StatusOr<std::vector<Group>> ParallelGroups(const Topology& topology,
                                                  const Parallelism& degrees, std::int64_t bytes);

// A file of groups in TOML; see docs/plan.md. `bytes` is for groups without a size. Errors name the
// line, the field and the reason: unknown keys and ranks, groups with fewer than two ranks, names
// that are equal, and groups of one phase that overlap.
absl::StatusOr<std::vector<Group>> ParseGroupsToml(std::string_view text, const Topology& topology,
                                                   std::int64_t bytes);

}  // namespace phub::plan
