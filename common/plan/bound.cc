#include "common/plan/bound.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/plan/flow.h"

namespace phub::plan {
namespace {

// members / capacity of a set of nodes: its members and the capacity of its outgoing links.
struct Ratio {
  std::int64_t members;
  std::int64_t capacity;
};

class GatherSearch {
 public:
  explicit GatherSearch(const Topology& topology)
      : topology_(topology),
        network_(topology.nodes().size() + 1),
        source_(static_cast<std::uint32_t>(topology.nodes().size())) {
    for (const Link& link : topology.links()) network_.AddEdge(link.from.value, link.to.value, 0);
    for (const NodeIndex member : topology.members()) network_.AddEdge(source_, member.value, 0);
  }

  CutBound Find() {
    const NodeIndex worst = SlowestReceiver();
    best_set_.assign(topology_.nodes().size(), true);
    best_set_[worst.value] = false;
    Use(Rate(best_set_));
    // The flow to every member grows with y: a member with enough flow keeps enough. One pass over
    // the members is therefore enough.
    for (const NodeIndex member : topology_.members())
      while (Improve(member)) {
      }
    CutBound bound;
    const auto chunk_times =
        Rational::Make(Wide{best_.members} * topology_.unit_capacity(), best_.capacity);
    PHUB_CHECK(chunk_times.has_value());  // members * unit_capacity is below 2^43
    bound.chunk_times = *chunk_times;
    for (std::uint32_t node = 0; node < best_set_.size(); ++node)
      if (best_set_[node]) bound.cut.push_back(NodeIndex{node});
    return bound;
  }

 private:
  NodeIndex SlowestReceiver() const {
    const auto capacity_into = [&](NodeIndex node) {
      std::int64_t sum = 0;
      for (const LinkIndex link : topology_.InLinks(node)) sum += topology_.link(link).capacity;
      return sum;
    };
    return *std::min_element(
        topology_.members().begin(), topology_.members().end(),
        [&](NodeIndex a, NodeIndex b) { return capacity_into(a) < capacity_into(b); });
  }

  Ratio Rate(const std::vector<bool>& set) const {
    Ratio ratio{0, 0};
    for (const NodeIndex member : topology_.members())
      if (set[member.value]) ++ratio.members;
    for (const Link& link : topology_.links())
      if (set[link.from.value] && !set[link.to.value]) ratio.capacity += link.capacity;
    return ratio;
  }

  // Sets y = members/capacity. Links have y times their capacity and the source has capacity 1 to
  // every member. All are multiplied by ratio.capacity to be integers. kCapacityMax and kMembersMax
  // keep them below 2^62.
  void Use(Ratio ratio) {
    best_ = ratio;
    const auto divisor = Rational::Make(ratio.members, ratio.capacity);
    PHUB_CHECK(divisor.has_value());
    supply_ = divisor->denominator();
    std::uint32_t edge = 0;
    for (const Link& link : topology_.links())
      network_.SetCapacity(edge++, link.capacity * divisor->numerator());
    for (std::size_t i = 0; i < topology_.members().size(); ++i)
      network_.SetCapacity(edge++, supply_);
  }

  bool Improve(NodeIndex member) {
    const std::int64_t wanted = static_cast<std::int64_t>(topology_.members().size()) * supply_;
    if (network_.Solve(source_, member.value, wanted) == wanted) return false;
    std::vector<bool> set(topology_.nodes().size());
    for (std::uint32_t node = 0; node < set.size(); ++node)
      set[node] = network_.IsOnSourceSide(node);
    const Ratio ratio = Rate(set);
    PHUB_CHECK(Wide{ratio.members} * best_.capacity > Wide{best_.members} * ratio.capacity,
               "members={} capacity={}", ratio.members, ratio.capacity);
    best_set_ = std::move(set);
    Use(ratio);
    return true;
  }

  const Topology& topology_;
  FlowNetwork network_;
  std::uint32_t source_;
  std::int64_t supply_ = 1;
  Ratio best_{0, 1};
  std::vector<bool> best_set_;
};

struct Cut {
  std::int64_t capacity = FlowNetwork::kUnlimited;
  std::vector<NodeIndex> side;  // the links of the cut lead out of it
};

// The minimum capacity out of a set with members inside and outside.
Cut NarrowestCut(const Topology& topology) {
  FlowNetwork network(topology.nodes().size());
  for (const Link& link : topology.links())
    network.AddEdge(link.from.value, link.to.value, link.capacity);
  Cut narrowest;
  const auto try_pair = [&](std::uint32_t from, std::uint32_t to) {
    const std::int64_t capacity = network.Solve(from, to, narrowest.capacity);
    if (capacity == narrowest.capacity) return;
    narrowest = {capacity, {}};
    for (std::uint32_t node = 0; node < topology.nodes().size(); ++node)
      if (network.IsOnSourceSide(node)) narrowest.side.push_back(NodeIndex{node});
  };
  const std::uint32_t first = topology.members().front().value;
  for (const NodeIndex member : topology.members().subspan(1)) {
    try_pair(first, member.value);
    if (topology.IsSymmetric()) continue;  // the reverse cut has the same capacity
    try_pair(member.value, first);
  }
  return narrowest;
}

}  // namespace

CutBound GatherBound(const Topology& topology) { return GatherSearch(topology).Find(); }

std::optional<ExchangeBound> BoundOf(const Topology& topology) {
  ExchangeBound bound;
  bound.gather = GatherBound(topology);
  bound.reduce = topology.IsSymmetric() ? bound.gather : GatherBound(topology.Reversed());
  const auto sum = Add(bound.gather.chunk_times, bound.reduce.chunk_times);
  Cut narrowest = NarrowestCut(topology);
  const auto time = Rational::Make(
      Wide{static_cast<std::int64_t>(topology.members().size())} * topology.unit_capacity(),
      narrowest.capacity);
  if (!sum || !time) return std::nullopt;
  bound.one_after_the_other = *sum;
  bound.narrowest = {*time, std::move(narrowest.side)};
  bound.partition = BoundOfPartitions(topology);
  return bound;
}

double SecondsFor(const Topology& topology, const Rational& chunk_times, double bytes) {
  return chunk_times.ToDouble() * bytes / static_cast<double>(topology.members().size()) /
         static_cast<double>(topology.unit_bytes_per_s());
}

}  // namespace phub::plan
