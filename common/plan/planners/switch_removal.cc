#include "common/plan/planners/switch_removal.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "common/plan/flow.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

class Remover {
 public:
  Remover(const Topology& topology, const std::vector<std::int64_t>& capacities,
          std::int64_t supply)
      : topology_(topology),
        source_(static_cast<std::uint32_t>(topology.nodes().size())),
        supply_(supply),
        wanted_(supply * static_cast<std::int64_t>(topology.members().size())),
        likely_(topology.members().begin(), topology.members().end()) {
    for (std::uint32_t i = 0; i < topology.links().size(); ++i) {
      const Link& link = topology.link(LinkIndex{i});
      edges_.push_back({link.from, link.to, capacities[i], {LinkIndex{i}}});
    }
  }

  absl::StatusOr<std::vector<PathEdge>> Run() {
    for (std::uint32_t node = 0; node < topology_.nodes().size(); ++node) {
      if (topology_.IsMember(NodeIndex{node})) continue;
      if (!Remove(NodeIndex{node}))
        return absl::FailedPreconditionError(
            fmt::format("the bandwidths into and out of switch {} differ",
                        topology_.node(NodeIndex{node}).name));
      DropEmpty();
    }
    return std::move(edges_);
  }

 private:
  bool Remove(NodeIndex hub) {
    std::vector<std::size_t> in, out;
    for (std::size_t i = 0; i < edges_.size(); ++i) {
      if (edges_[i].to == hub) in.push_back(i);
      if (edges_[i].from == hub) out.push_back(i);
    }
    Spread(in, out);
    // Pairs with different ends first: an edge back to the same node is useless.
    for (const bool back : {false, true})
      for (const std::size_t i : in)
        for (const std::size_t o : out)
          if ((edges_[i].from == edges_[o].to) == back) Split(hub, i, o);
    return std::all_of(in.begin(), in.end(), [&](std::size_t i) { return !edges_[i].capacity; }) &&
           std::all_of(out.begin(), out.end(), [&](std::size_t o) { return !edges_[o].capacity; });
  }

  // Part of a switch's capacity that becomes direct: `amount` from one edge to another.
  struct Piece {
    std::size_t in, out;
    std::int64_t amount;
  };

  // Connects every neighbour with several others, as evenly as the flows permit. If all capacity
  // were split at once, few thick edges would remain, and trees would be chains.
  void Spread(const std::vector<std::size_t>& in, const std::vector<std::size_t>& out) {
    std::vector<std::int64_t> part, left;
    for (const std::size_t i : in) part.push_back((edges_[i].capacity + kPartners - 1) / kPartners);
    for (std::size_t round = 1; round <= kPartners; ++round) {
      const std::size_t offset = std::max<std::size_t>(1, round * out.size() / (kPartners + 1));
      left.clear();
      for (const std::size_t o : out) left.push_back(edges_[o].capacity);
      std::vector<Piece> pieces;
      for (std::size_t i = 0; i < in.size(); ++i) {
        const std::size_t o = (i + offset) % out.size();
        const std::int64_t amount = std::min({part[i], edges_[in[i]].capacity, left[o]});
        if (amount == 0 || edges_[in[i]].from == edges_[out[o]].to) continue;
        left[o] -= amount;
        pieces.push_back({in[i], out[o], amount});
      }
      SplitTogether(pieces);
    }
  }

  // Splits all pieces if that keeps the flows, or else tries both halves.
  void SplitTogether(std::span<const Piece> pieces) {
    if (pieces.empty()) return;
    if (KeepsFlows(pieces)) {
      for (const Piece& piece : pieces) Take(piece.in, piece.out, piece.amount);
      return;
    }
    if (pieces.size() == 1) return;
    SplitTogether(pieces.first(pieces.size() / 2));
    SplitTogether(pieces.subspan(pieces.size() / 2));
  }

  bool KeepsFlows(std::span<const Piece> pieces) {
    std::vector<std::int64_t> capacities;
    for (const PathEdge& edge : edges_) capacities.push_back(edge.capacity);
    FlowNetwork network(topology_.nodes().size() + 1);
    for (const Piece& piece : pieces) {
      capacities[piece.in] -= piece.amount;
      capacities[piece.out] -= piece.amount;
      network.AddEdge(edges_[piece.in].from.value, edges_[piece.out].to.value, piece.amount);
    }
    for (std::size_t i = 0; i < edges_.size(); ++i)
      if (capacities[i] > 0)
        network.AddEdge(edges_[i].from.value, edges_[i].to.value, capacities[i]);
    for (const NodeIndex member : topology_.members())
      network.AddEdge(source_, member.value, supply_);
    for (std::size_t i = 0; i < likely_.size(); ++i) {
      if (network.Solve(source_, likely_[i].value, wanted_) >= wanted_) continue;
      Nothing(i);
      return false;
    }
    return true;
  }

  void Split(NodeIndex hub, std::size_t in, std::size_t out) {
    const std::int64_t most = std::min(edges_[in].capacity, edges_[out].capacity);
    if (most == 0) return;
    const std::int64_t amount = Removable(hub, edges_[in].from, edges_[out].to, most);
    if (amount > 0) Take(in, out, amount);
  }

  void Take(std::size_t in, std::size_t out, std::int64_t amount) {
    edges_[in].capacity -= amount;
    edges_[out].capacity -= amount;
    if (edges_[in].from == edges_[out].to) return;
    Path path = Joined(edges_[in].path, edges_[out].path);
    for (PathEdge& edge : edges_) {  // merge equal paths into one edge
      if (edge.path != path) continue;
      edge.capacity += amount;
      return;
    }
    edges_.push_back({edges_[in].from, edges_[out].to, amount, std::move(path)});
  }

  // Concatenates two paths. Drops loops, so that their capacity remains free.
  Path Joined(const Path& first, const Path& second) const {
    Path joined;
    for (const Path* part : {&first, &second}) {
      for (const LinkIndex index : *part) {
        const NodeIndex next = topology_.link(index).to;
        const auto been = std::find_if(joined.begin(), joined.end(), [&](LinkIndex earlier) {
          return topology_.link(earlier).from == next;
        });
        if (been == joined.end()) {
          joined.push_back(index);
        } else {
          joined.erase(been, joined.end());
        }
      }
    }
    return joined;
  }

  // How much capacity of u->hub->t can become u->t. Two families of cuts lose capacity: those that
  // separate u and t from hub, in both directions (ForestColl, section 5).
  std::int64_t Removable(NodeIndex hub, NodeIndex u, NodeIndex t, std::int64_t most) {
    FlowNetwork network(topology_.nodes().size() + 1);
    for (const PathEdge& edge : edges_)
      if (edge.capacity > 0) network.AddEdge(edge.from.value, edge.to.value, edge.capacity);
    for (const NodeIndex member : topology_.members())
      network.AddEdge(source_, member.value, supply_);
    constexpr std::int64_t kUnlimited = FlowNetwork::kUnlimited;
    for (std::size_t i = 0; i < likely_.size(); ++i) {
      const NodeIndex member = likely_[i];
      const FlowNetwork::Mark mark = network.Here();
      network.AddEdge(u.value, source_, kUnlimited);
      network.AddEdge(u.value, t.value, kUnlimited);
      network.AddEdge(member.value, hub.value, kUnlimited);
      most = std::min(most, network.Solve(u.value, hub.value, wanted_ + most) - wanted_);
      network.ReturnTo(mark);
      if (most <= 0) return Nothing(i);
      network.AddEdge(hub.value, source_, kUnlimited);
      network.AddEdge(u.value, t.value, kUnlimited);
      network.AddEdge(member.value, t.value, kUnlimited);
      most = std::min(most, network.Solve(hub.value, t.value, wanted_ + most) - wanted_);
      network.ReturnTo(mark);
      if (most <= 0) return Nothing(i);
    }
    return most;
  }

  // The member that rejected this pair is likely to reject the next pair: check it first.
  std::int64_t Nothing(std::size_t i) {
    std::rotate(likely_.begin(), likely_.begin() + static_cast<std::ptrdiff_t>(i),
                likely_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    return 0;
  }

  void DropEmpty() {
    edges_.erase(std::remove_if(edges_.begin(), edges_.end(),
                                [](const PathEdge& edge) { return edge.capacity == 0; }),
                 edges_.end());
  }

  static constexpr std::size_t kPartners = 8;

  const Topology& topology_;
  std::uint32_t source_;
  std::int64_t supply_;
  std::int64_t wanted_;
  std::vector<NodeIndex> likely_;  // members; those that recently rejected a pair come first
  std::vector<PathEdge> edges_;
};

}  // namespace

absl::StatusOr<std::vector<PathEdge>> RemoveSwitches(const Topology& topology,
                                                     const std::vector<std::int64_t>& capacities,
                                                     std::int64_t supply) {
  return Remover(topology, capacities, supply).Run();
}

}  // namespace phub::plan
