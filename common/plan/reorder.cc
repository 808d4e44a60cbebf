#include "common/plan/reorder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/plan/routes.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

using Ranks = std::vector<std::uint32_t>;  // position in the sequence -> rank of the member

struct Talk {  // two positions that exchange data
  std::uint32_t a;
  std::uint32_t b;
  double share;
};

std::vector<Talk> TalksOf(const Topology& topology, const Forest& forest) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, double> shares;
  for (const Tree& tree : forest.trees) {
    for (const auto* edges : {&tree.reduce, &tree.gather}) {
      for (const Edge& edge : *edges) {
        const std::uint32_t from = topology.RankOf(edge.from), to = topology.RankOf(edge.to);
        shares[{std::min(from, to), std::max(from, to)}] += static_cast<double>(tree.share);
      }
    }
  }
  std::vector<Talk> talks;
  for (const auto& [ends, share] : shares)
    talks.push_back({ends.first, ends.second, share / static_cast<double>(forest.share_unit)});
  return talks;
}

// A sequence of positions in which neighbours exchange much data: along the ring for a ring,
// subcube by subcube for halving-doubling. Near members should get near positions in it.
Ranks SequenceOf(const std::vector<Talk>& talks, std::size_t count) {
  std::vector<std::vector<double>> share(count, std::vector<double>(count, 0));
  for (const Talk& talk : talks) share[talk.a][talk.b] = share[talk.b][talk.a] = talk.share;
  Ranks left(count), sequence;
  std::iota(left.begin(), left.end(), 0u);
  for (auto next = left.begin(); !left.empty();) {
    const std::uint32_t at = *next;
    sequence.push_back(at);
    left.erase(next);
    next = std::max_element(left.begin(), left.end(), [&](std::uint32_t a, std::uint32_t b) {
      return share[at][a] < share[at][b];
    });
  }
  return sequence;
}

// The talks with positions replaced by their index in the sequence.
std::vector<Talk> Along(const Ranks& sequence, std::vector<Talk> talks) {
  Ranks position(sequence.size());
  for (std::uint32_t i = 0; i < sequence.size(); ++i) position[sequence[i]] = i;
  for (Talk& talk : talks) talk = {position[talk.a], position[talk.b], talk.share};
  return talks;
}

CostMatrix Symmetric(const CostMatrix& costs) {
  CostMatrix result = costs;
  for (std::size_t i = 0; i < costs.size(); ++i)
    for (std::size_t j = 0; j < costs.size(); ++j) result[i][j] = (costs[i][j] + costs[j][i]) / 2;
  return result;
}

// Single-linkage clusters: members connected by costs up to `limit`, in the order of ranks.
void ClusterBelow(const CostMatrix& costs, double limit, const Ranks& ranks,
                  std::vector<Ranks>& clusters) {
  std::vector<bool> used(costs.size(), false);
  for (const std::uint32_t first : ranks) {
    if (used[first]) continue;
    Ranks cluster{first};
    used[first] = true;
    for (std::size_t i = 0; i < cluster.size(); ++i) {
      for (const std::uint32_t other : ranks) {
        if (used[other] || costs[cluster[i]][other] > limit) continue;
        used[other] = true;
        cluster.push_back(other);
      }
    }
    clusters.push_back(std::move(cluster));
  }
}

// Splits at the widest gap between consecutive costs, then splits each cluster again.
Ranks OrderByGaps(const CostMatrix& costs, const Ranks& ranks, int depth) {
  constexpr double kWide = 1.2;  // minimum ratio of consecutive costs at a gap
  constexpr int kDepthMax = 8;
  std::vector<double> sorted;
  for (const std::uint32_t i : ranks)
    for (const std::uint32_t j : ranks)
      if (i < j) sorted.push_back(costs[i][j]);
  std::sort(sorted.begin(), sorted.end());
  double limit = 0, widest = kWide;
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i] <= sorted[i - 1] * widest) continue;
    widest = sorted[i - 1] > 0 ? sorted[i] / sorted[i - 1] : widest;
    limit = sorted[i - 1];
  }
  if (limit == 0 || depth >= kDepthMax) return ranks;
  std::vector<Ranks> clusters;
  ClusterBelow(costs, limit, ranks, clusters);
  if (clusters.size() < 2) return ranks;
  Ranks order;
  for (const Ranks& cluster : clusters) {
    const Ranks inner = OrderByGaps(costs, cluster, depth + 1);
    order.insert(order.end(), inner.begin(), inner.end());
  }
  return order;
}

Ranks NearestNeighbours(const CostMatrix& costs) {
  Ranks left(costs.size()), order;
  std::iota(left.begin(), left.end(), 0u);
  std::uint32_t at = 0;
  while (!left.empty()) {
    const auto next = std::min_element(left.begin(), left.end(), [&](auto a, auto b) {
      return (a == at ? -1 : costs[at][a]) < (b == at ? -1 : costs[at][b]);
    });
    at = *next;
    order.push_back(at);
    left.erase(next);
  }
  return order;
}

double SumOf(const std::vector<Talk>& talks, const CostMatrix& costs, const Ranks& order) {
  double sum = 0;
  for (const Talk& talk : talks) sum += talk.share * costs[order[talk.a]][order[talk.b]];
  return sum;
}

// 2-opt: reverses parts of the order while that lowers the sum, within a budget.
void TwoOpt(const std::vector<Talk>& talks, const CostMatrix& costs, Ranks& order) {
  constexpr double kEnough = 1e-9;
  // An evaluation reads every talk; the budget limits 256 members to about a second.
  std::size_t budget = 400'000'000 / std::max<std::size_t>(talks.size(), 1);
  double best = SumOf(talks, costs, order);
  for (bool improved = true; improved;) {
    improved = false;
    for (std::size_t i = 0; i + 1 < order.size(); ++i) {
      for (std::size_t j = i + 1; j < order.size(); ++j) {
        if (budget-- == 0) return;
        const auto first = order.begin() + static_cast<std::ptrdiff_t>(i);
        const auto last = order.begin() + static_cast<std::ptrdiff_t>(j) + 1;
        std::reverse(first, last);
        const double sum = SumOf(talks, costs, order);
        if (sum < best * (1 - kEnough)) {
          best = sum;
          improved = true;
        } else {
          std::reverse(first, last);
        }
      }
    }
  }
}

class Polisher {
 public:
  Polisher(const Topology& topology, const Forest& forest, const Ranks& sequence,
           const SimulationOptions& simulation)
      : topology_(topology), forest_(forest), sequence_(sequence), simulation_(simulation) {
    simulation_.mode = SimulationMode::kLockstep;
    simulation_.keep_timeline = false;
  }

  absl::StatusOr<double> Price(const Ranks& order) const {
    const absl::StatusOr<Forest> forest = Relabel(topology_, forest_, Members(order));
    if (!forest.ok()) return forest.status();
    const absl::StatusOr<SimulationResult> result = Simulate(topology_, *forest, simulation_);
    if (!result.ok()) return result.status();
    return result->seconds();
  }

  // Swaps two members while that is faster.
  absl::Status Polish(Ranks& order, double& seconds) const {
    std::size_t budget = 2'000'000 / std::max<std::size_t>(EdgeCount(forest_), 1);
    for (std::size_t i = 0; i < order.size(); ++i) {
      for (std::size_t j = i + 1; j < order.size(); ++j) {
        if (budget == 0) return absl::OkStatus();
        --budget;
        std::swap(order[i], order[j]);
        const absl::StatusOr<double> price = Price(order);
        if (!price.ok()) return price.status();
        if (*price < seconds) {
          seconds = *price;
        } else {
          std::swap(order[i], order[j]);
        }
      }
    }
    return absl::OkStatus();
  }

  std::vector<NodeIndex> Members(const Ranks& order) const {
    std::vector<NodeIndex> members(order.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      members[sequence_[i]] = topology_.members()[order[i]];
    return members;
  }

 private:
  const Topology& topology_;
  const Forest& forest_;
  const Ranks& sequence_;
  SimulationOptions simulation_;
};

}  // namespace

absl::StatusOr<CostMatrix> CostsOf(const Topology& topology, std::int64_t bytes) {
  const std::size_t count = topology.members().size();
  Router router(topology);
  std::vector<std::vector<Path>> paths(count, std::vector<Path>(count));
  std::vector<double> uses(topology.links().size(), 0);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < count; ++j) {
      if (i == j) continue;
      std::optional<Path> path = router.Route(topology.members()[i], topology.members()[j]);
      if (!path)
        return absl::FailedPreconditionError(
            fmt::format("there is no path from {} to {}", topology.node(topology.members()[i]).name,
                        topology.node(topology.members()[j]).name));
      for (const LinkIndex link : *path) uses[link.value] += 1;
      paths[i][j] = *std::move(path);
    }
  }
  CostMatrix costs(count, std::vector<double>(count, 0));
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < count; ++j) {
      for (const LinkIndex link : paths[i][j])
        costs[i][j] += static_cast<double>(topology.link(link).latency_ns) * 1e-9 +
                       static_cast<double>(bytes) / topology.BytesPerSecond(link) *
                           uses[link.value] / static_cast<double>(count);
    }
  }
  return costs;
}

absl::StatusOr<Forest> Relabel(const Topology& topology, const Forest& forest,
                               const std::vector<NodeIndex>& order) {
  return Reroute(forest, topology, [&](NodeIndex node) {
    return topology.IsMember(node) ? order[topology.RankOf(node)] : node;
  });
}

absl::StatusOr<ReorderResult> Reorder(const Topology& topology, const Forest& forest,
                                      const CostMatrix& costs,
                                      const SimulationOptions& simulation) {
  const std::size_t count = topology.members().size();
  if (costs.size() != count ||
      std::any_of(costs.begin(), costs.end(), [&](const auto& row) { return row.size() != count; }))
    return absl::InvalidArgumentError(fmt::format("the cost matrix must be {0} x {0}", count));
  const CostMatrix symmetric = Symmetric(costs);
  const Ranks sequence = SequenceOf(TalksOf(topology, forest), count);
  const std::vector<Talk> talks = Along(sequence, TalksOf(topology, forest));
  const Ranks& as_it_is = sequence;  // every member in its own position
  const Polisher polisher(topology, forest, sequence, simulation);
  SimulationOptions lockstep = simulation;
  lockstep.mode = SimulationMode::kLockstep;
  const absl::StatusOr<SimulationResult> before = Simulate(topology, forest, lockstep);
  if (!before.ok()) return before.status();
  ReorderResult result;
  result.forest = forest;
  result.order = polisher.Members(as_it_is);
  result.seconds_before = result.seconds_after = before->seconds();
  Ranks ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0u);
  for (Ranks order : {OrderByGaps(symmetric, ranks, 0), NearestNeighbours(symmetric), as_it_is}) {
    TwoOpt(talks, symmetric, order);
    absl::StatusOr<double> seconds = polisher.Price(order);
    if (!seconds.ok()) return seconds.status();
    if (absl::Status status = polisher.Polish(order, *seconds); !status.ok()) return status;
    if (*seconds >= result.seconds_after) continue;
    result.seconds_after = *seconds;
    result.order = polisher.Members(order);
    absl::StatusOr<Forest> relabelled = Relabel(topology, forest, result.order);
    if (!relabelled.ok()) return relabelled.status();
    result.forest = *std::move(relabelled);
  }
  return result;
}

}  // namespace phub::plan
