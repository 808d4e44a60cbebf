// MultiTree (Huang et al., "Communication Algorithm-Architecture Co-Design for Distributed Deep
// Learning", ISCA 2021). Every member is the home of one chunk and the root of one spanning tree.
// All trees grow together, step by step. In a step the slowest link carries one chunk, and other
// links carry several in proportion to their bandwidth. Adding an edge to a tree uses a link in
// that step, so no link is ever overloaded. Trees grow evenly: they take turns and add one child
// per turn. Only vertices that were in the tree before the step may send, earliest first. Trees are
// therefore dense near their roots and sparse near their leaves. In networks with switches, a tree
// first adds a member on the same switch as one of its vertices, then the nearest member over links
// that are still free in the step.
//
// The number of steps depends on the order in which neighbours are tried. The search runs with many
// orders in parallel and keeps the shortest result. Among equal results it keeps the first, so that
// the result does not depend on the number of threads.
#include <oneapi/tbb/parallel_for.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "common/base/random.h"
#include "common/plan/bound.h"
#include "common/plan/planners/out_forest.h"
#include "common/plan/planners/planner.h"
#include "common/plan/planners/rank_forest.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

constexpr std::uint32_t kNear = 2;  // search limit: the member and its switch
// Limit of one run without --starts: several seconds. 1,024 members on a torus need less.
constexpr std::uint64_t kLinkVisitsMax = std::uint64_t{1} << 31;
constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

// One run of the greedy construction.
class Growth {
 public:
  Growth(const Topology& topology, std::uint64_t seed, bool shuffle) : topology_(topology) {
    std::int64_t slowest = kCapacityMax;
    for (const Link& link : topology.links()) slowest = std::min(slowest, link.capacity);
    for (const Link& link : topology.links())
      slots_.push_back(static_cast<std::uint32_t>(link.capacity / slowest));
    SeededRandom random(seed);
    const auto mix = [&](auto& list) {
      for (std::size_t i = list.size(); shuffle && i > 1; --i)
        std::swap(list[i - 1], list[random.Below(i)]);
    };
    for (std::uint32_t node = 0; node < topology.nodes().size(); ++node) {
      const auto links = topology.OutLinks(NodeIndex{node});
      mix(out_links_.emplace_back(links.begin(), links.end()));
    }
    const std::size_t count = topology.members().size();
    roots_.resize(count);
    std::iota(roots_.begin(), roots_.end(), 0u);
    mix(roots_);
    trees_.resize(count);
    joined_.assign(count, std::vector<bool>(topology.nodes().size(), false));
    holders_.resize(count);
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      trees_[rank] = {topology.members()[rank], 1, {}};
      joined_[rank][trees_[rank].home.value] = true;
      holders_[rank] = {trees_[rank].home};
    }
    seen_.assign(topology.nodes().size(), 0);
    arrived_by_.resize(topology.nodes().size());
  }

  // Returns the number of steps. kNoIndex if it reaches `limit`, if the search visits more than
  // `visits_max` links, or if no edge can be added.
  std::uint32_t Run(std::uint32_t limit, std::uint64_t visits_max) {
    const std::size_t count = roots_.size();
    std::size_t missing = count * (count - 1);
    for (std::uint32_t step = 0; missing > 0; ++step) {
      if (step + 1 >= limit || link_visits_ > visits_max) return kNoIndex;
      const std::size_t added = RunStep(step);
      if (added == 0) return kNoIndex;
      missing -= added;
      steps_ = step + 1;
    }
    return steps_;
  }

  std::uint64_t link_visits() const { return link_visits_; }

  OutForest Take() { return {static_cast<std::int64_t>(roots_.size()), std::move(trees_)}; }

 private:
  std::size_t RunStep(std::uint32_t step) {
    free_ = slots_;
    // Holders before a cursor cannot reach another member in this step: near_cursor for members on
    // the same switch, far_cursor for others.
    std::vector<std::size_t> near_cursor(roots_.size(), 0), far_cursor(roots_.size(), 0);
    std::vector<std::size_t> holder_count;  // at the start of this step
    for (const auto& holders : holders_) holder_count.push_back(holders.size());
    std::size_t added = 0;
    for (bool progress = true; progress;) {
      progress = false;
      for (const std::uint32_t root : roots_) {
        if (GiveFromOne(root, kNear, near_cursor[root], holder_count[root], step) ||
            GiveFromOne(root, kNoIndex, far_cursor[root], holder_count[root], step)) {
          progress = true;
          ++added;
        }
      }
    }
    return added;
  }

  // Within a step links only fill and trees only grow: a holder that finds no member now will not
  // find one later in the step.
  bool GiveFromOne(std::uint32_t root, std::uint32_t reach, std::size_t& cursor, std::size_t end,
                   std::uint32_t step) {
    for (; cursor < end; ++cursor)
      if (GiveToOne(root, holders_[root][cursor], reach, step)) return true;
    return false;
  }

  // Adds the nearest member that is not in the tree and that `from` reaches over free links. The
  // search expands at most `reach` nodes.
  bool GiveToOne(std::uint32_t root, NodeIndex from, std::uint32_t reach, std::uint32_t step) {
    ++visit_;
    queue_.assign(1, from);
    seen_[from.value] = visit_;
    for (std::size_t head = 0; head < queue_.size() && head < reach; ++head) {
      for (const LinkIndex index : out_links_[queue_[head].value]) {
        ++link_visits_;
        if (free_[index.value] == 0) continue;
        const NodeIndex next = topology_.link(index).to;
        if (seen_[next.value] == visit_) continue;
        seen_[next.value] = visit_;
        arrived_by_[next.value] = index;
        if (!topology_.IsMember(next)) {
          queue_.push_back(next);
          continue;
        }
        if (joined_[root][next.value]) continue;
        Join(root, from, next, step);
        return true;
      }
    }
    return false;
  }

  void Join(std::uint32_t root, NodeIndex from, NodeIndex to, std::uint32_t step) {
    Path path;
    for (NodeIndex at = to; at != from; at = topology_.link(path.back()).from) {
      path.push_back(arrived_by_[at.value]);
      --free_[path.back().value];
    }
    std::reverse(path.begin(), path.end());
    trees_[root].edges.push_back({from, to, step, std::move(path)});
    joined_[root][to.value] = true;
    holders_[root].push_back(to);
  }

  const Topology& topology_;
  std::vector<std::uint32_t> slots_;  // by link: chunks per step
  std::vector<std::uint32_t> free_;
  std::vector<std::vector<LinkIndex>> out_links_;
  std::vector<std::uint32_t> roots_;  // in the order of their turns
  std::vector<OutTree> trees_;
  std::vector<std::vector<bool>> joined_;        // [root][node]
  std::vector<std::vector<NodeIndex>> holders_;  // root -> members in the order of joining
  std::uint32_t steps_ = 0;
  std::uint64_t link_visits_ = 0;
  std::uint32_t visit_ = 0;
  std::vector<std::uint32_t> seen_;  // by node: visit_ of the last search that reached it
  std::vector<LinkIndex> arrived_by_;
  std::vector<NodeIndex> queue_;
};

std::uint32_t MultitreeStarts(const Topology& topology, const PlannerOptions& options) {
  constexpr std::uint32_t kStartsMax = 100'000;
  if (options.starts > 0) return std::min(options.starts, kStartsMax);
  const std::size_t count = topology.members().size();
  if (count <= 32) return 128;
  if (count <= 64) return 64;
  if (count <= 128) return 32;
  if (count <= 256) return 8;
  return count <= 512 ? 2 : 1;
}

// A lower bound for the number of steps: the cut bound, in steps of one chunk on the slowest link.
std::uint32_t FewestSteps(const Topology& topology) {
  std::int64_t slowest = kCapacityMax;
  for (const Link& link : topology.links()) slowest = std::min(slowest, link.capacity);
  const Rational bound = GatherBound(topology).chunk_times;
  const auto steps = Rational::Make(Wide{bound.numerator()} * slowest,
                                    Wide{bound.denominator()} * topology.unit_capacity());
  return steps ? static_cast<std::uint32_t>(std::max<std::int64_t>(1, steps->Ceiling())) : 1;
}

absl::StatusOr<OutForest> GrowMultiTree(const Topology& topology, const PlannerOptions& options) {
  constexpr std::uint32_t kBatch = 16;
  const std::uint32_t starts = MultitreeStarts(topology, options);
  const std::uint32_t enough = starts > 1 ? FewestSteps(topology) : 1;
  std::optional<OutForest> best;
  std::uint32_t best_steps = kNoIndex;
  const std::uint64_t visits_max = options.starts > 0 ? kNoLimit : kLinkVisitsMax;
  // Batches have a fixed size, and only results of earlier batches end a run early: the result does
  // not depend on threads or timing.
  for (std::uint32_t first = 0; first < starts && best_steps > enough; first += kBatch) {
    const std::uint32_t count = std::min(kBatch, starts - first);
    std::vector<std::uint32_t> steps(count, kNoIndex);
    std::vector<std::uint64_t> visits(count, 0);
    const auto grow = [&](std::uint32_t i, std::uint32_t limit) {
      Growth growth(topology, options.seed + first + i, first + i > 0);
      steps[i] = growth.Run(limit, visits_max);
      visits[i] = growth.link_visits();
      return growth.Take();
    };
    oneapi::tbb::parallel_for(std::uint32_t{0}, count,
                              [&](std::uint32_t i) { grow(i, best_steps); });
    const auto least = std::min_element(steps.begin(), steps.end());
    if (*least < best_steps) {
      best_steps = *least;
      best = grow(static_cast<std::uint32_t>(least - steps.begin()), kNoIndex);
    } else if (!best && visits[0] > visits_max) {
      return absl::FailedPreconditionError(fmt::format(
          "the search visits more than {} links; --starts 1 removes this limit", visits_max));
    }
    if (options.progress) options.progress(std::min(first + kBatch, starts), starts);
  }
  if (!best)
    return absl::FailedPreconditionError(
        "some member can be reached only through links that lead back to members already in the "
        "tree");
  return *std::move(best);
}

absl::StatusOr<Forest> PlanMultiTree(const Topology& topology, const PlannerOptions& options) {
  return GrowBothPhases(topology, "multitree", [&](const Topology& direction) {
    return GrowMultiTree(direction, options);
  });
}

}  // namespace

Planner MultiTreePlanner() {
  return {"multitree",
          "one tree per member; all trees grow together, step by step, over free links", CheckEdges,
          PlanMultiTree};
}

}  // namespace phub::plan
