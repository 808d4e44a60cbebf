#include "common/plan/partition_bound.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/plan/flow.h"

namespace phub::plan {
namespace {

// A partition of the members and the sum of the least capacities out of its groups.
struct Partition {
  std::vector<std::uint32_t> group;  // by rank
  std::int64_t count = 0;
  std::int64_t capacity = 0;
};

class PartitionSearch {
 public:
  explicit PartitionSearch(const Topology& topology)
      : topology_(topology),
        count_(static_cast<std::uint32_t>(topology.members().size())),
        source_(static_cast<std::uint32_t>(topology.nodes().size())),
        sink_(source_ + 1),
        network_(topology.nodes().size() + 2) {
    for (const Link& link : topology.links()) network_.AddEdge(link.from.value, link.to.value, 0);
    for (const NodeIndex member : topology.members()) network_.AddEdge(source_, member.value, 0);
    for (const NodeIndex member : topology.members()) network_.AddEdge(member.value, sink_, 0);
  }

  // REQUIRES: at least two members.
  Partition Find() {
    Partition best = Singletons();
    for (;;) {
      Partition next = Least(best);
      // capacity / (count - 1) must decrease.
      if (next.count < 2 ||
          Wide{next.capacity} * (best.count - 1) >= Wide{best.capacity} * (next.count - 1))
        return best;
      best = std::move(next);
    }
  }

 private:
  std::int64_t CapacityOutOf(NodeIndex node) const {
    std::int64_t sum = 0;
    for (const LinkIndex link : topology_.OutLinks(node)) sum += topology_.link(link).capacity;
    return sum;
  }

  Partition Singletons() const {
    Partition result;
    result.group.resize(count_);
    std::iota(result.group.begin(), result.group.end(), 0u);
    result.count = count_;
    for (const NodeIndex member : topology_.members()) result.capacity += CapacityOutOf(member);
    return result;
  }

  // The partition with the least sum of q B+(S_i) - p, for p/q = capacity/(count - 1) of `from`.
  // Every member gets a potential, the greatest for which no set of members so far has more
  // potential than q B+ - p. Members of intersecting sets without slack belong to one group.
  // Capacities sum to less than 2^49 and q is below 2^12, so all sums fit.
  Partition Least(const Partition& from) {
    const std::int64_t divisor = std::gcd(from.capacity, from.count - 1);
    p_ = from.capacity / divisor;
    q_ = (from.count - 1) / divisor;
    for (std::uint32_t i = 0; i < topology_.links().size(); ++i)
      network_.SetCapacity(i, topology_.link(LinkIndex{i}).capacity * q_);
    for (std::uint32_t rank = 0; rank < count_; ++rank) {
      network_.SetCapacity(SourceEdge(rank), 0);
      network_.SetCapacity(SinkEdge(rank), FlowNetwork::kUnlimited);
    }
    group_.resize(count_);
    std::iota(group_.begin(), group_.end(), 0u);
    std::int64_t sum = 0, positive = 0;
    for (std::uint32_t rank = 0; rank < count_; ++rank) {
      const std::int64_t potential = Admit(rank, positive);
      sum += potential;
      positive += std::max<std::int64_t>(potential, 0);
    }
    Partition result;
    result.group = group_;
    std::vector<bool> is_used(count_, false);
    for (const std::uint32_t group : group_) is_used[group] = true;
    result.count = std::count(is_used.begin(), is_used.end(), true);
    result.capacity = (sum + p_ * result.count) / q_;
    return result;
  }

  // Returns the potential of the member. Merges the groups that its set intersects.
  std::int64_t Admit(std::uint32_t rank, std::int64_t positive) {
    network_.SetCapacity(SourceEdge(rank), FlowNetwork::kUnlimited);
    network_.SetCapacity(SinkEdge(rank), 0);
    const NodeIndex member = topology_.members()[rank];
    // The member alone is a set, so the minimum cut is below this.
    const std::int64_t limit = CapacityOutOf(member) * q_ + positive + 1;
    const std::int64_t cut = network_.Solve(source_, sink_, limit);
    std::vector<bool> is_merged(count_, false);
    for (std::uint32_t other = 0; other < rank; ++other)
      if (network_.IsOnSourceSide(topology_.members()[other].value))
        is_merged[group_[other]] = true;
    for (std::uint32_t other = 0; other < rank; ++other)
      if (is_merged[group_[other]]) group_[other] = rank;
    const std::int64_t potential = cut - positive - p_;
    network_.SetCapacity(SourceEdge(rank), std::max<std::int64_t>(potential, 0));
    network_.SetCapacity(SinkEdge(rank), std::max<std::int64_t>(-potential, 0));
    return potential;
  }

  std::uint32_t SourceEdge(std::uint32_t rank) const {
    return static_cast<std::uint32_t>(topology_.links().size()) + rank;
  }
  std::uint32_t SinkEdge(std::uint32_t rank) const { return SourceEdge(rank) + count_; }

  const Topology& topology_;
  std::uint32_t count_;
  std::uint32_t source_, sink_;
  FlowNetwork network_;
  std::int64_t p_ = 0, q_ = 1;
  std::vector<std::uint32_t> group_;  // by rank: the group so far
};

PartitionBound BoundOf(const Topology& topology, const Partition& partition) {
  PartitionBound bound;
  const auto members = static_cast<std::int64_t>(topology.members().size());
  const auto time = Rational::Make(
      Wide{2 * (partition.count - 1)} * members * topology.unit_capacity(), partition.capacity);
  PHUB_CHECK(time.has_value());  // the numerator is below 2^57
  bound.chunk_times = *time;
  std::vector<std::size_t> place(topology.members().size(), topology.members().size());
  for (std::uint32_t rank = 0; rank < topology.members().size(); ++rank) {
    std::size_t& at = place[partition.group[rank]];
    if (at == topology.members().size()) {
      at = bound.groups.size();
      bound.groups.emplace_back();
    }
    bound.groups[at].push_back(topology.members()[rank]);
  }
  return bound;
}

}  // namespace

PartitionBound BoundOfPartitions(const Topology& topology) {
  if (topology.members().size() < 2) return {};
  PartitionBound out = BoundOf(topology, PartitionSearch(topology).Find());
  if (topology.IsSymmetric()) return out;
  const Topology reversed = topology.Reversed();
  PartitionBound in = BoundOf(reversed, PartitionSearch(reversed).Find());
  return in.chunk_times > out.chunk_times ? in : out;
}

}  // namespace phub::plan
