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
// A leaf is the switch that all links of a member lead to. A tree that enters a leaf twice wastes
// the cables between leaves. In the first starts, trees therefore enter new leaves first, and other
// transfers stay within a leaf, where trees with the fewest members take the first turns. On
// racks:8x8@8 this takes 64 steps instead of 105; the bound is 63.
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
#include "common/plan/planners/leaves.h"
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
  Growth(const Topology& topology, std::uint64_t seed, bool shuffle, bool enters_leaves_first)
      : topology_(topology), enters_leaves_first_(enters_leaves_first) {
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
    joined_at_.assign(count, std::vector<std::uint32_t>(topology.nodes().size(), kNoIndex));
    holders_.resize(count);
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      trees_[rank] = {topology.members()[rank], 1, {}};
      joined_at_[rank][trees_[rank].home.value] = 0;
      holders_[rank] = {trees_[rank].home};
    }
    if (enters_leaves_first_) {
      leaf_of_ = LeavesOf(topology);
      up_of_.assign(topology.nodes().size(), LinkIndex{kNoIndex});
      down_of_ = up_of_;
      for (const Link& link : topology.links()) {
        const LinkIndex index{static_cast<std::uint32_t>(&link - topology.links().data())};
        if (leaf_of_[link.from.value] == link.to) up_of_[link.from.value] = index;
        if (leaf_of_[link.to.value] == link.from) down_of_[link.to.value] = index;
      }
      entered_.assign(count, std::vector<bool>(topology.nodes().size(), false));
      for (std::uint32_t rank = 0; rank < count; ++rank)
        entered_[rank][leaf_of_[trees_[rank].home.value].value] = true;
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
  struct Gift {
    std::uint32_t root;
    NodeIndex from, to;
  };

  std::size_t RunStep(std::uint32_t step) {
    free_ = slots_;
    gifts_.clear();
    // Holders before a cursor cannot reach another member in this step: near_cursor for members on
    // the same switch, far_cursor for others.
    std::vector<std::size_t> near_cursor(roots_.size(), 0), far_cursor(roots_.size(), 0);
    std::vector<std::size_t> holder_count;  // at the start of this step
    for (const auto& holders : holders_) holder_count.push_back(holders.size());
    std::size_t added = 0;
    const auto take_turns = [&](const auto& give) {
      for (bool progress = true; progress;) {
        progress = false;
        for (const std::uint32_t root : roots_) {
          if (!give(root)) continue;
          progress = true;
          ++added;
        }
      }
    };
    if (enters_leaves_first_) {
      only_new_leaves_ = true;
      take_turns([&](std::uint32_t root) {
        return GiveFromOne(root, kNoIndex, far_cursor[root], holder_count[root], step);
      });
      only_new_leaves_ = false;
      std::stable_sort(roots_.begin(), roots_.end(), [&](std::uint32_t a, std::uint32_t b) {
        return holders_[a].size() < holders_[b].size();
      });
    }
    take_turns([&](std::uint32_t root) {
      return GiveFromOne(root, kNear, near_cursor[root], holder_count[root], step) ||
             (!enters_leaves_first_ &&
              GiveFromOne(root, kNoIndex, far_cursor[root], holder_count[root], step));
    });
    if (enters_leaves_first_) added += FillGaps(step);
    return added;
  }

  // After all turns, a member `a` may have nothing for a member `d` on the same switch, though both
  // have room. If b sends to c in this step, and a can send to c and b to d, this replaces b -> c.
  std::size_t FillGaps(std::uint32_t step) {
    std::size_t added = 0;
    for (const NodeIndex from : topology_.members()) {
      if (!HasRoom(up_of_[from.value])) continue;
      for (const NodeIndex to : topology_.members())
        while (leaf_of_[from.value] == leaf_of_[to.value] && HasRoom(up_of_[from.value]) &&
               HasRoom(down_of_[to.value]) && FillGap(from, to, step))
          ++added;
    }
    return added;
  }

  bool HasRoom(LinkIndex link) const { return link.value != kNoIndex && free_[link.value] > 0; }

  bool FillGap(NodeIndex from, NodeIndex to, std::uint32_t step) {
    for (Gift& place : gifts_) {
      const Gift gift = place;
      if (leaf_of_[gift.from.value] != leaf_of_[from.value] || gift.from == from || gift.to == to)
        continue;
      const std::uint32_t second = TreeFor(gift.from, to, kNoIndex, step);
      const std::uint32_t first =
          second == kNoIndex ? kNoIndex : TreeFor(from, gift.to, gift.root, step);
      if (first == kNoIndex) continue;
      place = gifts_.back();
      gifts_.pop_back();
      TakeBack(gift);
      JoinOnLeaf(first, from, gift.to, step);
      JoinOnLeaf(second, gift.from, to, step);
      return true;
    }
    return false;
  }

  // A tree that `from` can send and that has not reached `to`, or `allowed`.
  std::uint32_t TreeFor(NodeIndex from, NodeIndex to, std::uint32_t allowed, std::uint32_t step) {
    for (const std::uint32_t root : roots_) {
      ++link_visits_;
      if (joined_at_[root][from.value] > step) continue;
      if (joined_at_[root][to.value] == kNoIndex || root == allowed) return root;
    }
    return kNoIndex;
  }

  void TakeBack(const Gift& gift) {
    std::vector<OutEdge>& edges = trees_[gift.root].edges;
    const auto edge = std::find_if(edges.rbegin(), edges.rend(),
                                   [&](const OutEdge& other) { return other.to == gift.to; });
    for (const LinkIndex link : edge->path) ++free_[link.value];
    edges.erase(std::next(edge).base());
    std::vector<NodeIndex>& holders = holders_[gift.root];
    holders.erase(std::next(std::find(holders.rbegin(), holders.rend(), gift.to)).base());
    joined_at_[gift.root][gift.to.value] = kNoIndex;
  }

  void JoinOnLeaf(std::uint32_t root, NodeIndex from, NodeIndex to, std::uint32_t step) {
    arrived_by_[leaf_of_[from.value].value] = up_of_[from.value];
    arrived_by_[to.value] = down_of_[to.value];
    Join(root, from, to, step);
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
      const std::vector<LinkIndex>& links = out_links_[queue_[head].value];
      if (links.empty()) continue;  // links of this switch may all lead the other way
      const std::size_t first = enters_leaves_first_ ? root % links.size() : 0;
      for (std::size_t i = 0; i < links.size(); ++i) {
        const LinkIndex index = links[(first + i) % links.size()];
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
        if (joined_at_[root][next.value] != kNoIndex) continue;
        if (only_new_leaves_ && entered_[root][leaf_of_[next.value].value]) continue;
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
    joined_at_[root][to.value] = step + 1;
    holders_[root].push_back(to);
    if (!enters_leaves_first_) return;
    entered_[root][leaf_of_[to.value].value] = true;
    if (leaf_of_[from.value] == leaf_of_[to.value]) gifts_.push_back({root, from, to});
  }

  const Topology& topology_;
  bool enters_leaves_first_;
  bool only_new_leaves_ = false;            // the present search ignores members of entered leaves
  std::vector<NodeIndex> leaf_of_;          // by node
  std::vector<LinkIndex> up_of_, down_of_;  // by node: a member's links with its switch
  std::vector<Gift> gifts_;                 // of this step, within leaves
  std::vector<std::vector<bool>> entered_;  // [root][leaf]
  std::vector<std::uint32_t> slots_;        // by link: chunks per step
  std::vector<std::uint32_t> free_;
  std::vector<std::vector<LinkIndex>> out_links_;
  std::vector<std::uint32_t> roots_;  // in the order of their turns
  std::vector<OutTree> trees_;
  std::vector<std::vector<std::uint32_t>> joined_at_;  // [root][node]: after so many steps
  std::vector<std::vector<NodeIndex>> holders_;        // root -> members in the order of joining
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

// Few of them are enough; they take longer than other starts.
std::uint32_t LeafStarts(const Topology& topology, std::uint32_t starts) {
  if (starts == 1) return 0;
  return topology.members().size() > 64 ? 1 : std::clamp(starts / 8, 1u, 16u);
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
  const std::uint32_t leaf_starts = HasLeaves(topology) ? LeafStarts(topology, starts) : 0;
  const std::uint32_t all = leaf_starts + starts;
  const std::uint32_t enough = starts > 1 ? FewestSteps(topology) : 1;
  std::optional<OutForest> best;
  std::uint32_t best_steps = kNoIndex;
  const std::uint64_t visits_max = options.starts > 0 ? kNoLimit : kLinkVisitsMax;
  // Batches have a fixed size, and only results of earlier batches end a run early: the result does
  // not depend on threads or timing.
  std::uint32_t count = 0;
  for (std::uint32_t first = 0; first < all && best_steps > enough; first += count) {
    count = first < leaf_starts ? leaf_starts : std::min(kBatch, all - first);
    std::vector<std::uint32_t> steps(count, kNoIndex);
    std::vector<std::uint64_t> visits(count, 0);
    const auto grow = [&](std::uint32_t i, std::uint32_t limit) {
      const bool enters_leaves_first = first < leaf_starts;
      const std::uint32_t start = first + i - (enters_leaves_first ? 0 : leaf_starts);
      Growth growth(topology, options.seed + start, start > 0, enters_leaves_first);
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
    } else if (!best && first >= leaf_starts && visits[0] > visits_max) {
      return absl::FailedPreconditionError(fmt::format(
          "the search visits more than {} links; --starts 1 removes this limit", visits_max));
    }
    if (options.progress) options.progress(first + count, all);
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
