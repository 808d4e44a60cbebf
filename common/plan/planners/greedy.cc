// Trees grown in continuous time, in the alpha-beta model: a transfer of s bytes over a path of
// links takes s / (the lowest bandwidth) and occupies every link of the path for that time; it
// arrives after the sum of the links' latencies. (MultiTree and TACOS do this in steps: Huang et
// al., ISCA 2021; Won et al., MICRO 2024.)
//
// All trees grow together. The next transfer is always the one that arrives first among all that
// some tree could add, if its links are still free by then. Every member is the home of one to four
// trees. Paths pass through switches only; members that relay are vertices. The search runs with
// many random orders of equal transfers and keeps the fastest result.
//
// Symmetry (planners/symmetry.h): only trees of one member per orbit grow. A link stands for its
// orbit: at any time one transfer may use it. All images of a transfer under the group are sent at
// the same time, so the trees of the other members, which are images, use other links of the same
// orbits. If several images share one link, the transfer takes that many times as long.
//
// A step is the place of a transfer in the order of its links and of its tree.
//
// Rules of a sketch (common/plan/sketches/sketch_rules.h): transfers that they forbid are no
// candidates. A sender's own data come first on every path between groups, because they are ready
// from the beginning and precede all other candidates that are ready. Among results that take
// almost the same time, the preference of the sketch decides. Links of members that relay between
// groups are often the bottleneck. In half of the runs these members send a tree to only one member
// of their group, which passes it on; if it cannot, the run finds nothing.
#include <oneapi/tbb/parallel_for.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "common/base/random.h"
#include "common/plan/planners/greedy_input.h"
#include "common/plan/planners/out_forest.h"
#include "common/plan/planners/planner.h"
#include "common/plan/planners/preference.h"
#include "common/plan/planners/rank_forest.h"

namespace phub::plan {
namespace {

constexpr std::uint32_t kTreesPerMemberMax = 4;
constexpr double kAlmostEqual = 1.001;
// The number of starts is chosen for this many candidates of all starts together. A single start
// may have more.
constexpr std::size_t kWorkOfAll = std::size_t{1} << 21;

// One run of the greedy construction.
class GreedyGrowth {
 public:
  GreedyGrowth(const GreedyInput& input, std::uint32_t trees_per_member, double size_bytes,
               std::uint64_t seed)
      : input_(input),
        random_(seed),
        trees_per_member_(trees_per_member),
        bytes_(size_bytes / static_cast<double>(Members()) / trees_per_member),
        free_s_(input.topology->links().size(), 0),
        next_step_(input.topology->links().size(), 0),
        queues_(input.classes.size()) {
    constexpr double kDepthWeights[] = {0, 0, 0.2, 0.5};
    depth_weight_ = kDepthWeights[random_.Below(4)];
    if (HasGroups()) spares_relays_ = random_.Below(2) == 0;
    for (const std::uint32_t root : input.symmetry.representatives)
      for (std::uint32_t i = 0; i < trees_per_member; ++i) {
        GrowingTree& tree = trees_.emplace_back();
        tree.holders.resize(Members());
        if (HasGroups()) tree.holders_in.resize(Members());
        tree.home = root;
      }
  }

  // Returns the time when the last transfer arrives, in seconds. Infinity if some member cannot be
  // reached.
  double Run() {
    for (std::uint32_t tree = 0; tree < trees_.size(); ++tree)
      Hold(tree, trees_[tree].home, {0, 0, 0});
    std::size_t missing = trees_.size() * (Members() - 1);
    double end_s = 0;
    while (!turns_.empty() && missing > 0) {
      const Turn turn = turns_.top();
      turns_.pop();
      Queue& queue = queues_[turn.class_index];
      if (turn.arrival_s != queue.turn_s) continue;  // an earlier turn replaced it
      queue.turn_s = std::numeric_limits<double>::infinity();
      const std::optional<Candidate> first = FirstOf(turn.class_index);
      if (first && ArrivalOf(turn.class_index, first->ready_s) <= turn.arrival_s) {
        queue.sendable.pop();
        Commit(turn.class_index, *first);
        end_s = std::max(end_s, turn.arrival_s);
        --missing;
      }
      Schedule(turn.class_index);
    }
    return missing > 0 ? std::numeric_limits<double>::infinity() : end_s;
  }

  // The trees of all members: the images of those that grew.
  OutForest Take() const {
    OutForest forest;
    forest.share_unit = static_cast<std::int64_t>(Members()) * trees_per_member_;
    for (const Permutation& element : input_.symmetry.elements)
      for (const GrowingTree& tree : trees_) forest.trees.push_back(Image(tree, element));
    return forest;
  }

 private:
  struct Candidate {
    double ready_s;  // since when the sender has the data
    double order;    // among candidates that are ready
    std::uint32_t tree;
    std::uint32_t from;  // rank
    std::uint32_t path;  // index into the sender's paths
  };
  struct ReadyLater {
    bool operator()(const Candidate& a, const Candidate& b) const { return a.ready_s > b.ready_s; }
  };
  struct Behind {
    bool operator()(const Candidate& a, const Candidate& b) const { return a.order > b.order; }
  };
  // The candidates of one class of paths. Links only get busier, so a candidate that is ready when
  // the links are free remains so.
  struct Queue {
    std::priority_queue<Candidate, std::vector<Candidate>, ReadyLater> waiting;
    std::priority_queue<Candidate, std::vector<Candidate>, Behind> sendable;
    double turn_s = std::numeric_limits<double>::infinity();  // of its valid turn
  };
  // When the first candidate of a class would arrive. Links may get busier until then.
  struct Turn {
    double arrival_s;
    double order;
    std::uint32_t class_index;
    bool operator>(const Turn& other) const {
      return arrival_s != other.arrival_s ? arrival_s > other.arrival_s : order > other.order;
    }
  };
  struct Holder {
    double since_s = -1;     // negative: it does not have the data
    std::uint32_t step = 0;  // the first step in which it can send
    std::uint32_t depth = 0;
  };
  struct Grown {
    std::uint32_t from;
    std::uint32_t path;
    std::uint32_t step;
  };
  struct GrowingTree {
    std::uint32_t home = 0;
    std::vector<Holder> holders;            // by rank
    std::vector<std::uint32_t> holders_in;  // by group of the rules
    std::vector<Grown> edges;
  };

  std::size_t Members() const { return input_.topology->members().size(); }
  bool HasData(const Candidate& candidate) const {
    const std::uint32_t to = input_.paths[candidate.from][candidate.path].to;
    return trees_[candidate.tree].holders[to].since_s >= 0;
  }

  bool HasGroups() const { return input_.rules != nullptr && !input_.rules->group_of.empty(); }
  // Whether the sender leaves the transfer to others: it relays between groups, and another member
  // of its group has the tree.
  bool IsLeftToOthers(const Candidate& candidate) const {
    const std::uint32_t to = input_.paths[candidate.from][candidate.path].to;
    return spares_relays_ && input_.is_relay[candidate.from] &&
           !input_.rules->IsCrossing(candidate.from, to) &&
           trees_[candidate.tree].holders_in[input_.rules->group_of[to]] > 1;
  }

  double FreeOf(std::uint32_t class_index) const {
    double free_s = 0;
    for (const std::uint32_t orbit : input_.classes[class_index].orbits)
      free_s = std::max(free_s, free_s_[orbit]);
    return free_s;
  }
  double SentOf(std::uint32_t class_index, double ready_s) const {
    return std::max(FreeOf(class_index), ready_s) +
           bytes_ * input_.classes[class_index].seconds_per_byte;
  }
  double ArrivalOf(std::uint32_t class_index, double ready_s) const {
    return SentOf(class_index, ready_s) + input_.classes[class_index].latency_s;
  }

  // The candidate that arrives first. It is then the first of the sendable ones.
  std::optional<Candidate> FirstOf(std::uint32_t class_index) {
    Queue& queue = queues_[class_index];
    double ready_s = FreeOf(class_index);
    for (;;) {
      for (; !queue.waiting.empty() && queue.waiting.top().ready_s <= ready_s; queue.waiting.pop())
        queue.sendable.push(queue.waiting.top());
      while (!queue.sendable.empty() &&
             (HasData(queue.sendable.top()) || IsLeftToOthers(queue.sendable.top())))
        queue.sendable.pop();
      if (!queue.sendable.empty() || queue.waiting.empty()) break;
      ready_s = queue.waiting.top().ready_s;
    }
    if (queue.sendable.empty()) return std::nullopt;
    return queue.sendable.top();
  }

  // Gives the class a turn for its first candidate.
  void Schedule(std::uint32_t class_index) {
    const std::optional<Candidate> first = FirstOf(class_index);
    if (!first) return;
    const double arrival_s = ArrivalOf(class_index, first->ready_s);
    if (arrival_s >= queues_[class_index].turn_s) return;
    queues_[class_index].turn_s = arrival_s;
    turns_.push({arrival_s, first->order, class_index});
  }

  // The member has the tree's data and can send it.
  void Hold(std::uint32_t tree, std::uint32_t rank, Holder holder) {
    trees_[tree].holders[rank] = holder;
    if (HasGroups()) ++trees_[tree].holders_in[input_.rules->group_of[rank]];
    for (std::uint32_t i = 0; i < input_.paths[rank].size(); ++i) {
      const ClassedPath& path = input_.paths[rank][i];
      if (trees_[tree].holders[path.to].since_s >= 0) continue;
      const double random = static_cast<double>(random_.Next() >> 11) * 0x1p-53;
      const std::uint32_t home = trees_[tree].home;
      if (!input_.MayCarry(home, rank, path.to)) continue;
      double order = random + depth_weight_ * holder.depth;
      if (input_.MustBeFirst(home, rank, path.to)) order = random - 1;
      queues_[path.class_index].waiting.push({holder.since_s, order, tree, rank, i});
      Schedule(path.class_index);
    }
  }

  void Commit(std::uint32_t class_index, const Candidate& candidate) {
    const Holder sender = trees_[candidate.tree].holders[candidate.from];
    const double sent_s = SentOf(class_index, candidate.ready_s);
    const double arrival_s = ArrivalOf(class_index, candidate.ready_s);
    const std::vector<std::uint32_t>& orbits = input_.classes[class_index].orbits;
    std::uint32_t step = sender.step;
    for (const std::uint32_t orbit : orbits) step = std::max(step, next_step_[orbit]);
    for (const std::uint32_t orbit : orbits) {
      free_s_[orbit] = sent_s;
      next_step_[orbit] = step + 1;
    }
    trees_[candidate.tree].edges.push_back({candidate.from, candidate.path, step});
    Hold(candidate.tree, input_.paths[candidate.from][candidate.path].to,
         {arrival_s, step + 1, sender.depth + 1});
  }

  OutTree Image(const GrowingTree& tree, const Permutation& element) const {
    const Topology& topology = *input_.topology;
    const auto image_of = [&](std::uint32_t rank) {
      return element[topology.members()[rank].value];
    };
    OutTree image{image_of(tree.home), 1, {}};
    for (const Grown& edge : tree.edges) {
      const ClassedPath& path = input_.paths[edge.from][edge.path];
      OutEdge out{image_of(edge.from), image_of(path.to), edge.step, {}};
      for (const LinkIndex index : path.links) {
        const Link& link = topology.link(index);
        out.path.push_back(*topology.FindLink(element[link.from.value], element[link.to.value]));
      }
      image.edges.push_back(std::move(out));
    }
    return image;
  }

  const GreedyInput& input_;
  SeededRandom random_;
  std::uint32_t trees_per_member_;
  double bytes_;  // of one tree
  double depth_weight_ = 0;
  bool spares_relays_ = false;
  std::vector<double> free_s_;            // by orbit of links
  std::vector<std::uint32_t> next_step_;  // by orbit of links
  std::vector<GrowingTree> trees_;
  std::vector<Queue> queues_;  // by class of paths
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns_;
};

// The numbers of trees per member that are tried.
struct TreeCounts {
  std::uint32_t least = 1;
  std::uint32_t most = 1;
  std::uint32_t Of(std::uint32_t start) const { return least + start % (most - least + 1); }
};

TreeCounts TreeCountsFor(const GreedyInput& input) {
  const std::size_t members = input.topology->members().size();
  if (input.rules != nullptr && input.rules->trees_per_member > 0)
    return {input.rules->trees_per_member, input.rules->trees_per_member};
  if (input.Work() > kWorkOfAll / kTreesPerMemberMax) return {};
  return {1, static_cast<std::uint32_t>(std::clamp<std::size_t>(
                 kEdgesMax / (2 * members * (members - 1)), 1, kTreesPerMemberMax))};
}

// As many as take about a second.
std::uint32_t GreedyStarts(const GreedyInput& input, TreeCounts counts, std::uint32_t starts) {
  constexpr std::size_t kStartsMax = 100'000, kUsualMax = 256;
  if (starts > 0) return static_cast<std::uint32_t>(std::min<std::size_t>(starts, kStartsMax));
  const std::size_t least = counts.most - counts.least + 1;
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(
      kWorkOfAll / std::max<std::size_t>(1, input.Work() * counts.most), least, kUsualMax));
}

struct StartResult {
  double end_s = 0;
  double regret = 0;
};

// Returns a start with the least regret among almost equal results, then with the fewest trees; the
// first of several.
std::uint32_t BestOf(const std::vector<StartResult>& results, TreeCounts counts) {
  double least_s = results.front().end_s;
  for (const StartResult& result : results) least_s = std::min(least_s, result.end_s);
  const auto place_of = [&](std::uint32_t start) {
    return std::pair(results[start].regret, counts.Of(start));
  };
  std::uint32_t best = kNoIndex;
  for (std::uint32_t start = 0; start < results.size(); ++start)
    if (results[start].end_s <= least_s * kAlmostEqual &&
        (best == kNoIndex || place_of(start) < place_of(best)))
      best = start;
  return best;
}

// One phase: the trees grow away from their homes.
absl::StatusOr<OutForest> GrowGreedy(const Topology& topology, const PlannerOptions& options,
                                     bool reduces) {
  constexpr std::uint32_t kBatch = 16;
  const absl::StatusOr<GreedyInput> input = GreedyInput::Of(topology, options.rules, reduces);
  if (!input.ok()) return input.status();
  const TreeCounts counts = TreeCountsFor(*input);
  if (absl::Status status = input->CheckLimits(counts.least); !status.ok()) return status;
  const std::uint32_t starts = GreedyStarts(*input, counts, options.starts);
  const bool has_preference =
      options.rules != nullptr && options.rules->preference != PlanPreference::kAny;
  const auto growth_of = [&](std::uint32_t start) {
    return GreedyGrowth(*input, counts.Of(start), static_cast<double>(options.size_bytes),
                        options.seed + start);
  };
  std::vector<StartResult> results(starts);
  for (std::uint32_t first = 0; first < starts; first += kBatch) {
    const std::uint32_t end = std::min(first + kBatch, starts);
    oneapi::tbb::parallel_for(first, end, [&](std::uint32_t start) {
      GreedyGrowth growth = growth_of(start);
      results[start].end_s = growth.Run();
      if (has_preference) results[start].regret = RegretOf(topology, growth.Take(), *options.rules);
    });
    if (options.progress) options.progress(end, starts);
  }
  const std::uint32_t best = BestOf(results, counts);
  if (results[best].end_s == std::numeric_limits<double>::infinity())
    return absl::FailedPreconditionError(
        options.rules == nullptr
            ? "some member cannot be reached from another one"
            : "under the rules of the sketch, some member cannot be reached from another one");
  GreedyGrowth growth = growth_of(best);
  growth.Run();
  return growth.Take();
}

absl::StatusOr<Forest> PlanGreedy(const Topology& topology, const PlannerOptions& options) {
  if (options.rules == nullptr)
    return GrowBothPhases(topology, "greedy", [&](const Topology& direction) {
      return GrowGreedy(direction, options, false);
    });
  const absl::StatusOr<OutForest> down = GrowGreedy(topology, options, false);
  if (!down.ok()) return down.status();
  const absl::StatusOr<OutForest> up = GrowGreedy(topology.Reversed(), options, true);
  if (!up.ok()) return up.status();
  return PairPhases(topology, "greedy", *up, *down);
}

}  // namespace

Planner GreedyPlanner() {
  return {"greedy",
          "one to four trees per member, grown in time; adds the transfer that arrives first",
          CheckEdges, PlanGreedy, true};
}

}  // namespace phub::plan
