#include "server/core/exchange/rack_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "common/base/check.h"

namespace phub::server::exchange {
namespace {

using plan::Edge;

RackIndex RackOf(const plan::Topology& topology, plan::NodeIndex node) {
  if (topology.IsMember(node)) return RackIndex{topology.RankOf(node)};
  auto rack = static_cast<std::uint32_t>(topology.members().size());
  for (std::uint32_t before = 0; before < node.value; ++before) {
    if (topology.nodes()[before].kind == plan::NodeKind::kAggregator) ++rack;
  }
  return RackIndex{rack};
}

std::vector<Edge> InStepOrder(const std::vector<Edge>& edges) {
  std::vector<Edge> sorted = edges;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Edge& a, const Edge& b) { return a.step < b.step; });
  return sorted;
}

// Bits of all racks whose sums reach `rack`, including itself.
std::uint64_t SubtreeOf(const std::multimap<std::uint32_t, std::uint32_t>& children,
                        std::uint32_t rack) {
  std::uint64_t mask = RackBit(RackIndex{rack});
  const auto [begin, end] = children.equal_range(rack);
  for (auto child = begin; child != end; ++child) mask |= SubtreeOf(children, child->second);
  return mask;
}

RackTree MakeTree(const plan::Topology& topology, const plan::Tree& tree, RackIndex self) {
  RackTree made;
  made.home = RackOf(topology, tree.home);
  std::multimap<std::uint32_t, std::uint32_t> children;
  for (const Edge& edge : tree.reduce) {
    children.emplace(RackOf(topology, edge.to).value, RackOf(topology, edge.from).value);
  }
  for (const Edge& edge : InStepOrder(tree.reduce)) {
    const RackIndex from = RackOf(topology, edge.from), to = RackOf(topology, edge.to);
    if (from == self) made.reduce_parent = to;
    if (to == self) made.reduce_children.push_back({from, SubtreeOf(children, from.value)});
  }
  for (const Edge& edge : InStepOrder(tree.gather)) {
    const RackIndex from = RackOf(topology, edge.from), to = RackOf(topology, edge.to);
    if (to == self) made.gather_parent = from;
    if (from == self) made.gather_children.push_back(to);
  }
  return made;
}

absl::Status CheckEnds(const plan::Topology& topology, const std::vector<Edge>& edges,
                       bool aggregators) {
  for (const Edge& edge : edges) {
    for (const plan::NodeIndex node : {edge.from, edge.to}) {
      const bool is_daemon = topology.IsMember(node) || aggregators;
      if (is_daemon && topology.node(node).kind != plan::NodeKind::kSwitch) continue;
      return absl::InvalidArgumentError(
          fmt::format("it sums in switch {}; daemons can sum only in racks, and in aggregators if "
                      "`aggregators` lists a daemon for each",
                      topology.node(node).name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::uint32_t AggregatorCount(const plan::Topology& topology) {
  return static_cast<std::uint32_t>(std::count_if(
      topology.nodes().begin(), topology.nodes().end(),
      [](const plan::Node& node) { return node.kind == plan::NodeKind::kAggregator; }));
}

plan::NodeIndex NodeOf(const plan::Topology& topology, RackIndex rack) {
  std::uint32_t node = 0;
  for (;; ++node) {
    const plan::NodeIndex index{node};
    PHUB_CHECK(node < topology.nodes().size(), "rack={}", rack.value);
    if (topology.node(index).kind == plan::NodeKind::kSwitch) continue;
    if (RackOf(topology, index) == rack) return index;
  }
}

absl::StatusOr<RackPlan> MakeRackPlan(const plan::Topology& topology, const plan::Forest& forest,
                                      RackIndex self, bool aggregators) {
  const auto member_count = static_cast<std::uint32_t>(topology.members().size());
  RackPlan made;
  made.self = self;
  made.rack_count = member_count + (aggregators ? AggregatorCount(topology) : 0);
  made.aggregates = self.value >= member_count;
  if (made.rack_count > kRacksMax) {
    return absl::InvalidArgumentError(
        fmt::format("it has {} racks, but a job can span at most {}", made.rack_count, kRacksMax));
  }
  for (const plan::Tree& tree : forest.trees) {
    for (const auto* edges : {&tree.reduce, &tree.gather}) {
      absl::Status status = CheckEnds(topology, *edges, aggregators);
      if (!status.ok()) return status;
      for (const Edge& edge : *edges) {
        made.participants |=
            RackBit(RackOf(topology, edge.from)) | RackBit(RackOf(topology, edge.to));
      }
    }
    made.trees.push_back(MakeTree(topology, tree, self));
    made.shares.push_back(static_cast<double>(tree.share) / static_cast<double>(forest.share_unit));
    const RackTree& own = made.trees.back();
    if (own.reduce_parent) made.neighbors |= RackBit(*own.reduce_parent);
    if (own.gather_parent) made.neighbors |= RackBit(*own.gather_parent);
    for (const ReduceChild& child : own.reduce_children) made.neighbors |= RackBit(child.rack);
    for (const RackIndex child : own.gather_children) made.neighbors |= RackBit(child);
  }
  return made;
}

TreeChooser::TreeChooser(const RackPlan& plan, CoreIndex core)
    : shares_(plan.shares),
      given_(plan.trees.size(), 0.0),
      first_(core.value % static_cast<std::uint32_t>(plan.trees.size())) {}

std::uint32_t TreeChooser::Next(std::uint64_t chunk_bytes) {
  total_ += static_cast<double>(chunk_bytes);
  const auto count = static_cast<std::uint32_t>(shares_.size());
  std::uint32_t best = first_;
  double best_lack = shares_[best] * total_ - given_[best];
  for (std::uint32_t i = 1; i < count; ++i) {
    const std::uint32_t tree = (first_ + i) % count;
    const double lack = shares_[tree] * total_ - given_[tree];
    if (lack <= best_lack) continue;
    best = tree;
    best_lack = lack;
  }
  given_[best] += static_cast<double>(chunk_bytes);
  return best;
}

}  // namespace phub::server::exchange
