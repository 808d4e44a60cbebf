#include "common/plan/measured.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "common/plan/routes.h"
#include "common/plan/topology_builder.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

// Minimum ratio of a gap between groups.
constexpr double kGap = 1.5;
// Minimum difference of a gap in round trips. Smaller differences may be the wakeup of a thread on
// a busy host, and are negligible for a plan.
constexpr double kRoundTripGapS = 100e-6;
// Bandwidths within this ratio count as equal.
constexpr double kEqual = 1.2;
// Two groups have their own link if its bandwidth is below this fraction of their uplinks'.
constexpr double kNarrower = 0.7;
// Bandwidths are rounded to hundredths of the widest one, divided by a power of ten.
constexpr std::int64_t kSteps = 100;
constexpr int kDecadesMax = 6;

double Mean(double a, double b) { return (a + b) / 2; }

// The distance of each pair: the mean of both directions, or its inverse.
SquareMatrix Farness(const SquareMatrix& matrix, bool inverse) {
  SquareMatrix far = matrix;
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    for (std::size_t j = 0; j < matrix.size(); ++j) {
      if (i == j) continue;
      const double mean = Mean(matrix[i][j], matrix[j][i]);
      far[i][j] = inverse ? 1 / mean : mean;
    }
  }
  return far;
}

// The connected components of pairs with a distance of at most `limit`.
RankGroups Connected(const SquareMatrix& far, double limit) {
  RankGroups groups;
  std::vector<bool> used(far.size(), false);
  for (std::uint32_t first = 0; first < far.size(); ++first) {
    if (used[first]) continue;
    std::vector<std::uint32_t> group{first};
    used[first] = true;
    for (std::size_t i = 0; i < group.size(); ++i) {
      for (std::uint32_t other = 0; other < far.size(); ++other) {
        if (used[other] || far[group[i]][other] > limit) continue;
        used[other] = true;
        group.push_back(other);
      }
    }
    std::sort(group.begin(), group.end());
    groups.push_back(std::move(group));
  }
  return groups;
}

struct GroupSplit {
  RankGroups groups;
  double gap = 0;  // nearest pair of two groups / farthest pair within a group
};

// Finds the widest gap that separates groups.
std::optional<GroupSplit> FindSplit(const SquareMatrix& far, double difference_min) {
  std::vector<double> sorted;
  for (std::size_t i = 0; i < far.size(); ++i) {
    for (std::size_t j = i + 1; j < far.size(); ++j) sorted.push_back(far[i][j]);
  }
  std::sort(sorted.begin(), sorted.end());
  std::optional<GroupSplit> best;
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const double gap = sorted[i] / sorted[i - 1];
    if (gap < kGap || sorted[i] - sorted[i - 1] < difference_min) continue;
    if (best && gap <= best->gap) continue;
    RankGroups groups = Connected(far, sorted[i - 1]);
    // All pairs below the gap are within groups; all pairs above it must be between groups.
    std::size_t inside = 0;
    std::size_t alone = 0;
    for (const auto& group : groups) {
      inside += group.size() * (group.size() - 1) / 2;
      alone += group.size() == 1 ? 1 : 0;
    }
    // A few fast pairs among single members are noise, not groups.
    if (inside == i && 2 * alone < far.size()) best = GroupSplit{std::move(groups), gap};
  }
  return best;
}

// Replaces values that are about equal by their mean.
void MakeEqual(std::vector<double*>& values) {
  std::sort(values.begin(), values.end(), [](const double* a, const double* b) { return *a < *b; });
  for (std::size_t begin = 0, end = 0; begin < values.size(); begin = end) {
    double sum = 0;
    for (end = begin; end < values.size() && *values[end] <= kEqual * *values[begin]; ++end) {
      sum += *values[end];
    }
    const double mean = sum / static_cast<double>(end - begin);
    for (std::size_t i = begin; i < end; ++i) *values[i] = mean;
  }
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class MeasuredTopology {
 public:
  MeasuredTopology(const std::vector<std::string>& names, const Measured& measured,
                   const RankGroups& groups, const SquareMatrix& between)
      : names_(names),
        measured_(measured),
        groups_(groups),
        between_(between),
        out_(names.size(), 0),
        in_(names.size(), 0),
        up_(groups.size(), 0),
        down_(groups.size(), 0) {}

  absl::StatusOr<Topology> Build() {
    MeasureMembers();
    MeasureUplinks();
    std::vector<double*> all;
    for (auto* const values : {&out_, &in_, &up_, &down_}) {
      for (double& value : *values) {
        if (value > 0) all.push_back(&value);
      }
    }
    if (!has_core_) {
      for (auto& row : between_) {
        for (double& value : row) {
          if (value > 0) all.push_back(&value);
        }
      }
    }
    MakeEqual(all);
    for (const double* value : all) widest_ = std::max(widest_, *value);
    if (!(widest_ >= 1) || widest_ > static_cast<double>(kUnitBytesPerSecondMax)) {
      return absl::InvalidArgumentError(
          fmt::format("the measured bandwidth of {} bytes per second is out of range", widest_));
    }
    return Lay();
  }

 private:
  // The bandwidth of a member's link is its best measurement. Its latency is a quarter of the round
  // trip within the group: a path has two such links, a round trip four.
  void MeasureMembers() {
    std::vector<double> all;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      std::vector<double> inside;
      for (const std::uint32_t a : groups_[g]) {
        for (const std::uint32_t b : groups_[g]) {
          if (a != b) inside.push_back(measured_.round_trip_s[a][b] / 4);
        }
      }
      latency_s_.push_back(inside.empty() ? -1 : Median(inside));
      if (!inside.empty()) all.push_back(latency_s_.back());
      for (const std::uint32_t a : groups_[g]) MeasureMember(a, groups_[g]);
    }
    // A group of one member has no such measurement; use the minimum of the other groups.
    const double least = all.empty() ? 0 : *std::min_element(all.begin(), all.end());
    for (double& latency : latency_s_) latency = latency < 0 ? least : latency;
  }

  void MeasureMember(std::uint32_t member, const std::vector<std::uint32_t>& group) {
    std::vector<std::uint32_t> others = group;
    if (group.size() == 1) {
      others.resize(names_.size());
      std::iota(others.begin(), others.end(), 0u);
    }
    for (const std::uint32_t other : others) {
      if (other == member) continue;
      out_[member] = std::max(out_[member], measured_.bytes_per_s[member][other]);
      in_[member] = std::max(in_[member], measured_.bytes_per_s[other][member]);
    }
  }

  void MeasureUplinks() {
    for (std::size_t a = 0; a < groups_.size(); ++a) {
      for (std::size_t b = 0; b < groups_.size(); ++b) {
        if (a == b) continue;
        up_[a] = std::max(up_[a], between_[a][b]);
        down_[a] = std::max(down_[a], between_[b][a]);
      }
    }
    for (std::size_t a = 0; a < groups_.size(); ++a) {
      between_[a][a] = 0;
      for (std::size_t b = 0; b < groups_.size(); ++b) {
        if (a != b && between_[a][b] < kNarrower * std::min(up_[a], down_[b])) has_core_ = false;
      }
    }
    if (!has_core_) up_.assign(up_.size(), 0), down_.assign(down_.size(), 0);
  }

  // The latency between the switches of two groups.
  double LatencyBetween(std::size_t a, std::size_t b) const {
    std::vector<double> one_way;
    for (const std::uint32_t from : groups_[a]) {
      for (const std::uint32_t to : groups_[b]) {
        one_way.push_back(Mean(measured_.round_trip_s[from][to], measured_.round_trip_s[to][from]) /
                          2);
      }
    }
    return std::max(0.0, Median(one_way) - latency_s_[a] - latency_s_[b]);
  }

  Rational CapacityOf(double bytes_per_s) const {
    std::int64_t unit = kSteps;
    double steps = bytes_per_s / widest_ * static_cast<double>(kSteps);
    for (int i = 0; i < kDecadesMax && steps < 10; ++i) {
      steps *= 10;
      unit *= 10;
    }
    const auto whole = std::max<std::int64_t>(1, std::llround(steps));
    return Rational::Make(whole, unit).value_or(Rational(1));
  }

  std::string FreeName(const std::string& wanted) const {
    std::string name = wanted;
    while (std::find(names_.begin(), names_.end(), name) != names_.end()) name += "_";
    return name;
  }

  static std::int64_t InNs(double seconds) {
    return std::min<std::int64_t>(std::llround(seconds * 1e9), kLatencyNsMax);
  }

  absl::StatusOr<Topology> Lay() const {
    TopologyBuilder builder("measured", std::llround(widest_), 0, /*aggregate=*/false);
    for (const std::string& name : names_) builder.AddNode({name, NodeKind::kMember});
    std::vector<NodeIndex> switches;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::string name = groups_.size() == 1 ? "switch" : fmt::format("group{}", g);
      switches.push_back(builder.AddSwitch(FreeName(name), std::nullopt));
      for (const std::uint32_t member : groups_[g]) {
        const NodeIndex node{member};
        builder.AddLink(node, switches[g], CapacityOf(out_[member]), InNs(latency_s_[g]));
        builder.AddLink(switches[g], node, CapacityOf(in_[member]), InNs(latency_s_[g]));
      }
    }
    if (groups_.size() > 1) has_core_ ? LayCore(builder, switches) : LayMesh(builder, switches);
    return builder.Build();
  }

  void LayCore(TopologyBuilder& builder, const std::vector<NodeIndex>& switches) const {
    const NodeIndex core = builder.AddSwitch(FreeName("core"), std::nullopt);
    for (std::size_t a = 0; a < switches.size(); ++a) {
      std::vector<double> latency;
      for (std::size_t b = 0; b < switches.size(); ++b) {
        if (a != b) latency.push_back(LatencyBetween(a, b) / 2);
      }
      builder.AddLink(switches[a], core, CapacityOf(up_[a]), InNs(Median(latency)));
      builder.AddLink(core, switches[a], CapacityOf(down_[a]), InNs(Median(latency)));
    }
  }

  void LayMesh(TopologyBuilder& builder, const std::vector<NodeIndex>& switches) const {
    for (std::size_t a = 0; a < switches.size(); ++a) {
      for (std::size_t b = 0; b < switches.size(); ++b) {
        if (a == b) continue;
        builder.AddLink(switches[a], switches[b], CapacityOf(between_[a][b]),
                        InNs(LatencyBetween(a, b)));
      }
    }
  }

  const std::vector<std::string>& names_;
  const Measured& measured_;
  const RankGroups& groups_;
  SquareMatrix between_;
  std::vector<double> out_, in_;   // by rank: bandwidth of the member's link
  std::vector<double> up_, down_;  // by group: bandwidth of its uplink; 0: it has none
  std::vector<double> latency_s_;  // by group: latency of its members' links
  bool has_core_ = true;
  double widest_ = 0;
};

}  // namespace

RankGroups FindGroups(const Measured& measured) {
  std::optional<GroupSplit> split = FindSplit(Farness(measured.bytes_per_s, /*inverse=*/true), 0);
  if (!split) split = FindSplit(Farness(measured.round_trip_s, /*inverse=*/false), kRoundTripGapS);
  if (split) return std::move(split->groups);
  RankGroups all(1, std::vector<std::uint32_t>(measured.bytes_per_s.size()));
  std::iota(all[0].begin(), all[0].end(), 0u);
  return all;
}

CostMatrix CostsOf(const Measured& measured, std::int64_t bytes) {
  CostMatrix costs = measured.round_trip_s;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    for (std::size_t j = 0; j < costs.size(); ++j) {
      if (i == j) continue;
      costs[i][j] = costs[i][j] / 2 + static_cast<double>(bytes) / measured.bytes_per_s[i][j];
    }
  }
  return costs;
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> PairsBetween(
    const std::vector<std::uint32_t>& one, const std::vector<std::uint32_t>& other) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
  for (std::size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
    pairs.emplace_back(one[i], other[i]);
  }
  return pairs;
}

absl::StatusOr<Topology> TopologyOf(const std::vector<std::string>& names, const Measured& measured,
                                    const RankGroups& groups, const SquareMatrix& between) {
  return MeasuredTopology(names, measured, groups, between).Build();
}

absl::StatusOr<Forest> Transfer(const Topology& from, const Forest& forest, const Topology& to) {
  if (from.members().size() != to.members().size()) {
    return absl::InvalidArgumentError(fmt::format("{} has {} members, but {} has {}", from.name(),
                                                  from.members().size(), to.name(),
                                                  to.members().size()));
  }
  if (SumsInSwitches(from, forest))
    return absl::InvalidArgumentError(
        "the plan sums in switches and cannot be transferred to another topology");
  return Reroute(forest, to, [&](NodeIndex node) { return to.members()[from.RankOf(node)]; });
}

}  // namespace phub::plan
