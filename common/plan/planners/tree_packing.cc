#include "common/plan/planners/tree_packing.h"

#include <algorithm>
#include <bitset>
#include <deque>
#include <utility>

#include "absl/status/status.h"
#include "common/plan/flow.h"

namespace phub::plan {
namespace {

// A batch: `count` copies of a tree that are equal so far.
struct Batch {
  std::uint32_t root = 0;  // ranks
  std::int64_t count = 0;
  std::vector<std::size_t> edges;      // indices of PathEdges, in the order of growth
  std::vector<std::uint32_t> reached;  // ranks, in the order of joining
  std::vector<std::uint32_t> depth;    // by rank; kNoIndex: not reached
};

class Packer {
 public:
  Packer(const Topology& topology, std::vector<PathEdge> edges, std::int64_t supply)
      : topology_(topology), edges_(std::move(edges)) {
    const auto members = static_cast<std::uint32_t>(topology.members().size());
    leaving_.resize(members);
    tight_sets_.resize(members);
    for (std::size_t i = 0; i < edges_.size(); ++i)
      leaving_[topology.RankOf(edges_[i].from)].push_back(i);
    forest_.share_unit = supply * members;
    for (std::uint32_t root = 0; root < members; ++root) {
      Batch batch{root, supply, {}, {root}, std::vector<std::uint32_t>(members, kNoIndex)};
      batch.depth[root] = 0;
      open_.push_back(std::move(batch));
    }
  }

  absl::StatusOr<OutForest> Run(const std::function<void(std::size_t, std::size_t)>& progress) {
    const std::size_t members = leaving_.size();
    std::int64_t done = 0;
    while (!open_.empty()) {
      Batch batch = std::move(open_.front());
      open_.pop_front();
      while (batch.reached.size() < members)
        if (!Extend(batch))
          return absl::InternalError(
              "no edge can be added to a tree (a bug in the packing planner)");
      done += batch.count;
      Finish(batch);
      if (forest_.trees.size() * members > kEdgesMax)
        return absl::ResourceExhaustedError("the plan has too many edges: round the bandwidths");
      if (progress)
        progress(static_cast<std::size_t>(done), static_cast<std::size_t>(forest_.share_unit));
    }
    return std::move(forest_);
  }

 private:
  static constexpr std::size_t kTightSetsMax = 512;
  using TightSets = std::bitset<kTightSetsMax>;

  // Adds the possible edge nearest to the root. Any possible edge would give the same bandwidth;
  // the nearest one keeps the trees shallow.
  bool Extend(Batch& batch) {
    BuildNetwork();
    for (const std::uint32_t from : batch.reached) {  // in order of depth, as the tree grows
      for (const std::size_t index : leaving_[from]) {
        const std::uint32_t to = topology_.RankOf(edges_[index].to);
        if (edges_[index].capacity == 0 || batch.depth[to] != kNoIndex) continue;
        if (IsBlocked(batch, from, to)) continue;
        const std::int64_t room = Room(batch, index, from, to);
        if (room == 0) {
          RememberCut();
          continue;
        }
        if (room < batch.count) {  // the other copies become a batch of their own
          Batch rest = batch;
          rest.count -= room;
          open_.push_front(std::move(rest));
          batch.count = room;
        }
        edges_[index].capacity -= room;
        batch.edges.push_back(index);
        batch.reached.push_back(to);
        batch.depth[to] = batch.depth[from] + 1;
        return true;
      }
    }
    return false;
  }

  // Builds a network of the remaining capacities. Every other open batch has a node with unlimited
  // edges to the vertices that the batch has reached.
  void BuildNetwork() {
    network_ = FlowNetwork(leaving_.size());
    for (const PathEdge& edge : edges_)
      if (edge.capacity > 0)
        network_.AddEdge(topology_.RankOf(edge.from), topology_.RankOf(edge.to), edge.capacity);
    batch_nodes_.clear();
    open_count_ = 0;
    for (const Batch& other : open_) {
      open_count_ += other.count;
      if (other.reached.size() == 1) {
        batch_nodes_.push_back(other.root);  // its only vertex is the root
        continue;
      }
      batch_nodes_.push_back(network_.AddNode());
      for (const std::uint32_t rank : other.reached)
        network_.AddEdge(batch_nodes_.back(), rank, FlowNetwork::kUnlimited);
    }
  }

  // Caches the cut that the last Solve() found. A set of members is tight if the capacity into it
  // is exactly what batches that have not reached it need. A batch inside a tight set must not take
  // an edge into it. The set stays tight: each edge taken into it reduces capacity and need alike.
  // Cached cuts answer more than half of the later queries.
  void RememberCut() {
    const std::size_t set = cut_count_++ % kTightSetsMax;  // replaces the oldest
    for (std::uint32_t rank = 0; rank < tight_sets_.size(); ++rank)
      tight_sets_[rank][set] = !network_.IsOnSourceSide(rank);
  }

  bool IsBlocked(const Batch& batch, std::uint32_t from, std::uint32_t to) const {
    const TightSets entered = tight_sets_[to] & ~tight_sets_[from];
    return entered.any() &&
           std::any_of(batch.reached.begin(), batch.reached.end(),
                       [&](std::uint32_t rank) { return (tight_sets_[rank] & entered).any(); });
  }

  // How many copies of the tree may take the edge without making any open batch impossible to
  // complete (Berczi and Frank 2010). Add an edge from the sender to the node of every other batch,
  // with the batch's count as its capacity. The result is the maximum flow from sender to receiver
  // minus the sum of these counts.
  std::int64_t Room(const Batch& batch, std::size_t index, std::uint32_t from, std::uint32_t to) {
    const std::int64_t most = std::min(batch.count, edges_[index].capacity);
    const FlowNetwork::Mark mark = network_.Here();
    std::size_t i = 0;
    for (const Batch& other : open_) {
      const std::uint32_t node = batch_nodes_[i++];
      if (node != from) network_.AddEdge(from, node, other.count);
    }
    const std::int64_t flow = network_.Solve(from, to, open_count_ + most);
    network_.ReturnTo(mark);
    return std::clamp<std::int64_t>(flow - open_count_, 0, most);
  }

  void Finish(const Batch& batch) {
    OutTree& tree = forest_.trees.emplace_back();
    tree.home = topology_.members()[batch.root];
    tree.share = batch.count;
    for (const std::size_t index : batch.edges)
      tree.edges.push_back({edges_[index].from, edges_[index].to, 0, edges_[index].path});
    StepsByDepth(tree);
  }

  const Topology& topology_;
  std::vector<PathEdge> edges_;
  std::vector<std::vector<std::size_t>> leaving_;  // edges by the rank of their sender
  std::deque<Batch> open_;                         // all batches except the growing one
  std::vector<std::uint32_t> batch_nodes_;         // by batch of open_: its node in the network
  std::int64_t open_count_ = 0;
  FlowNetwork network_;
  std::vector<TightSets> tight_sets_;  // by rank: the sets that contain it
  std::size_t cut_count_ = 0;
  OutForest forest_;
};

}  // namespace

absl::StatusOr<OutForest> PackTrees(const Topology& topology, std::vector<PathEdge> edges,
                                    std::int64_t supply,
                                    const std::function<void(std::size_t, std::size_t)>& progress) {
  return Packer(topology, std::move(edges), supply).Run(progress);
}

}  // namespace phub::plan
