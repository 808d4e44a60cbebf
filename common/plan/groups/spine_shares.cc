#include "common/plan/groups/spine_shares.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "common/plan/groups/pairs_bound.h"
#include "common/plan/groups/share_search.h"

namespace phub::plan {
namespace {

constexpr std::int64_t kPartsUnit = 12;  // groups are also divided into 2, 3 and 4 equal parts

// The problem in integers: `factor` times sizes in units of `unit_bytes`.
struct ScaledProblem {
  ShareProblem problem;
  std::int64_t unit_bytes = 1;
  std::int64_t factor = 1;
};

absl::Status TooFineShares() {
  return absl::InvalidArgumentError(
      "the sizes of the groups and the bandwidths have no simple common unit: round them");
}

absl::StatusOr<ScaledProblem> ScaleProblem(const LeafSpine& network,
                                           std::span<const SpineDemand> groups,
                                           const Rational& limit) {
  ScaledProblem scaled;
  ShareProblem& problem = scaled.problem;
  problem.spines = network.spines.size();
  scaled.unit_bytes = 0;
  Wide sum = 0;
  for (const SpineDemand& group : groups) {
    scaled.unit_bytes = std::gcd(scaled.unit_bytes, group.bytes);
    sum += group.bytes;
    problem.leaves.push_back(group.leaves);
  }
  problem.weight = network.cables.front();
  std::int64_t divisor = 0;
  for (const std::int64_t weight : problem.weight) divisor = std::gcd(divisor, weight);
  for (std::int64_t& weight : problem.weight) weight /= divisor;
  const std::int64_t whole =
      std::accumulate(problem.weight.begin(), problem.weight.end(), std::int64_t{0});
  const auto in_units =
      Rational::Make(limit.numerator(), Wide{limit.denominator()} * scaled.unit_bytes);
  constexpr Wide kMost = Wide{1} << 61;
  if (!in_units) return TooFineShares();
  const Wide factor = Wide{in_units->denominator()} * whole * kPartsUnit;
  if (factor > kMost || sum / scaled.unit_bytes > kMost / factor) return TooFineShares();
  scaled.factor = static_cast<std::int64_t>(factor);
  for (const SpineDemand& group : groups)
    problem.need.push_back(group.bytes / scaled.unit_bytes * scaled.factor);
  const Wide per_capacity = Wide{in_units->numerator()} * whole * kPartsUnit;
  problem.room.resize(network.leaves.size());
  for (std::size_t leaf = 0; leaf < network.leaves.size(); ++leaf) {
    for (const std::int64_t capacity : network.cables[leaf]) {
      if (per_capacity > kMost / capacity) return TooFineShares();
      problem.room[leaf].push_back(static_cast<std::int64_t>(per_capacity * capacity));
    }
  }
  return scaled;
}

}  // namespace

std::optional<Rational> LeafBound(const LeafSpine& network, std::span<const SpineDemand> groups) {
  std::vector<Wide> bytes(network.leaves.size(), 0);
  for (const SpineDemand& group : groups)
    for (const std::uint32_t leaf : group.leaves) bytes[leaf] += group.bytes;
  Rational bound;
  for (std::uint32_t leaf = 0; leaf < bytes.size(); ++leaf) {
    if (bytes[leaf] == 0) continue;
    const auto load = Rational::Make(bytes[leaf], network.CapacityToSpines(leaf));
    if (!load) return std::nullopt;
    bound = std::max(bound, *load);
  }
  return bound;
}

absl::StatusOr<SpineShares> DivideAmongSpines(const LeafSpine& network,
                                              std::span<const SpineDemand> groups,
                                              const Rational& limit) {
  SpineShares shares;
  if (groups.empty()) return shares;
  const absl::StatusOr<ScaledProblem> scaled = ScaleProblem(network, groups, limit);
  if (!scaled.ok()) return scaled.status();
  const ShareProblem& problem = scaled->problem;
  shares.pairs_least = LeastPairs(problem);
  std::int64_t one_each = 0, narrowest = std::int64_t{1} << 40;
  for (const auto& leaves : problem.leaves) {
    one_each += static_cast<std::int64_t>(leaves.size());
    narrowest = std::min(narrowest, static_cast<std::int64_t>(leaves.size()));
  }
  SingleSpines single;
  if (shares.pairs_least == one_each) {
    single = SearchSingleSpines(problem);
    // At least one group needs another spine.
    if (!single.table && single.is_proven) shares.pairs_least += narrowest;
  }
  if (!single.table) shares.pairs_least = std::max(shares.pairs_least, LeastDividedPairs(problem));
  const ShareTable table =
      single.table ? *std::move(single.table) : SearchDividedShares(problem, shares.pairs_least);
  shares.pairs = table.Pairs();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    std::vector<SpineShare>& list = shares.by_group.emplace_back();
    for (std::uint32_t spine = 0; spine < problem.spines; ++spine)
      if (table.AmountOf(group, spine) > 0)
        list.push_back({spine, *Rational::Make(table.AmountOf(group, spine), problem.need[group])});
  }
  for (std::uint32_t leaf = 0; leaf < network.leaves.size(); ++leaf) {
    for (std::uint32_t spine = 0; spine < problem.spines; ++spine) {
      const std::int64_t used = problem.room[leaf][spine] - table.LeftAt(leaf, spine);
      const auto load = Rational::Make(Wide{used} * scaled->unit_bytes,
                                       Wide{scaled->factor} * network.cables[leaf][spine]);
      if (!load) return TooFineShares();
      shares.load = std::max(shares.load, *load);
    }
  }
  std::vector<std::vector<std::uint32_t>> users(network.leaves.size(),
                                                std::vector<std::uint32_t>(problem.spines, 0));
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (const SpineShare& share : shares.by_group[group])
      for (const std::uint32_t leaf : groups[group].leaves)
        if (++users[leaf][share.spine] == 2) ++shares.conflicts;
  return shares;
}

}  // namespace phub::plan
