#include "common/plan/verify_tree.h"

#include <algorithm>
#include <numeric>

#include "fmt/core.h"

namespace phub::plan {

TreeVerifier::TreeVerifier(const Topology& topology, const Forest& forest)
    : topology_(topology),
      forest_(forest),
      members_(MembersOf(topology, forest)),
      contributions_(topology.nodes().size()) {}

const std::vector<Edge>& TreeVerifier::Edges(bool reduces) const {
  return reduces ? forest_.trees[tree_].reduce : forest_.trees[tree_].gather;
}

absl::Status TreeVerifier::Refuse(bool reduces, const Edge& edge, const std::string& reason) const {
  return absl::InvalidArgumentError(
      fmt::format("{}: {}", DescribeEdge(topology_, forest_, tree_, reduces, edge), reason));
}

absl::Status TreeVerifier::RefuseTree(const std::string& reason) const {
  return absl::InvalidArgumentError(
      fmt::format("tree {} (home {}): {}", tree_, NameOf(forest_.trees[tree_].home), reason));
}

absl::Status TreeVerifier::Verify(std::size_t tree) {
  tree_ = tree;
  for (const bool reduces : {true, false}) {
    if (absl::Status status = CheckShape(reduces); !status.ok()) return status;
    if (absl::Status status = CheckCircle(reduces); !status.ok()) return status;
  }
  if (absl::Status status = CheckOrder(); !status.ok()) return status;
  if (absl::Status status = Reduce(); !status.ok()) return status;
  return Gather();
}

// Checks that every vertex except the home has exactly one reduce edge out and one gather edge in,
// and that no switch is a leaf.
absl::Status TreeVerifier::CheckShape(bool reduces) {
  const NodeIndex home = forest_.trees[tree_].home;
  in_count_.assign(topology_.nodes().size(), 0);
  out_count_.assign(topology_.nodes().size(), 0);
  for (const Edge& edge : Edges(reduces)) {
    if (++out_count_[edge.from.value] > 1 && reduces)
      return Refuse(reduces, edge,
                    fmt::format("{} sends its partial sum twice", NameOf(edge.from)));
    if (++in_count_[edge.to.value] > 1 && !reduces)
      return Refuse(reduces, edge, fmt::format("{} receives the result twice", NameOf(edge.to)));
  }
  for (const Edge& edge : Edges(reduces)) {
    if (reduces && edge.from == home)
      return Refuse(reduces, edge, "the home must not send its partial sum");
    if (reduces && edge.to != home && out_count_[edge.to.value] == 0)
      return Refuse(reduces, edge,
                    fmt::format("{} never forwards the partial sum", NameOf(edge.to)));
    if (!reduces && edge.to == home)
      return Refuse(reduces, edge, "the home already has the result");
    if (!reduces && !topology_.IsMember(edge.to) && out_count_[edge.to.value] == 0)
      return Refuse(
          reduces, edge,
          fmt::format("switch {} receives the result but does not forward it", NameOf(edge.to)));
    if (reduces && !topology_.IsMember(edge.from) && in_count_[edge.from.value] == 0)
      return Refuse(
          reduces, edge,
          fmt::format("switch {} sends a partial sum but receives none", NameOf(edge.from)));
  }
  return absl::OkStatus();
}

// Repeatedly removes edges that wait for nothing. Edges that remain are part of a cycle of waits,
// or wait for one.
absl::Status TreeVerifier::CheckCircle(bool reduces) {
  const std::vector<Edge>& edges = Edges(reduces);
  std::vector<std::vector<std::uint32_t>> leaving(topology_.nodes().size());
  std::vector<std::uint32_t> waits(topology_.nodes().size(), 0);
  for (std::uint32_t i = 0; i < edges.size(); ++i) {
    leaving[edges[i].from.value].push_back(i);
    ++waits[edges[i].to.value];
  }
  std::vector<std::uint32_t> ready;
  for (std::uint32_t node = 0; node < waits.size(); ++node)
    if (waits[node] == 0) ready.push_back(node);
  std::vector<bool> taken(edges.size(), false);
  while (!ready.empty()) {
    const std::uint32_t node = ready.back();
    ready.pop_back();
    for (const std::uint32_t i : leaving[node]) {
      taken[i] = true;
      if (--waits[edges[i].to.value] == 0) ready.push_back(edges[i].to.value);
    }
  }
  for (std::size_t i = 0; i < edges.size(); ++i)
    if (!taken[i])
      return Refuse(
          reduces, edges[i],
          "the edge is part of a cycle of waits, or waits for one: the plan would deadlock");
  return absl::OkStatus();
}

absl::Status TreeVerifier::CheckOrder() {
  const Tree& tree = forest_.trees[tree_];
  last_arrival_.assign(topology_.nodes().size(), -1);
  for (const Edge& edge : tree.reduce)
    last_arrival_[edge.to.value] = std::max(last_arrival_[edge.to.value], std::int64_t{edge.step});
  for (const Edge& edge : tree.reduce)
    if (last_arrival_[edge.from.value] >= edge.step)
      return Refuse(true, edge,
                    fmt::format("{} receives a partial sum only at step {}", NameOf(edge.from),
                                last_arrival_[edge.from.value]));
  const std::int64_t summed = last_arrival_[tree.home.value];
  last_arrival_.assign(topology_.nodes().size(), -1);
  for (const Edge& edge : tree.gather) last_arrival_[edge.to.value] = edge.step;
  last_arrival_[tree.home.value] = summed;
  for (const Edge& edge : tree.gather)
    if (last_arrival_[edge.from.value] >= edge.step)
      return Refuse(false, edge,
                    fmt::format("{} has the result only after step {}", NameOf(edge.from),
                                last_arrival_[edge.from.value]));
  return absl::OkStatus();
}

absl::Status TreeVerifier::Reduce() {
  const Tree& tree = forest_.trees[tree_];
  const std::size_t member_count = members_.size();
  for (std::size_t place = 0; place < member_count; ++place) {
    contributions_[members_[place].value].assign(member_count, 0);
    contributions_[members_[place].value][place] = 1;
  }
  for (const Edge& edge : tree.reduce)
    for (const NodeIndex node : {edge.from, edge.to})
      if (!topology_.IsMember(node)) contributions_[node.value].assign(member_count, 0);
  order_.resize(tree.reduce.size());
  std::iota(order_.begin(), order_.end(), 0u);
  std::stable_sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return tree.reduce[a].step < tree.reduce[b].step;
  });
  for (const std::uint32_t i : order_) {
    const std::uint8_t* from = contributions_[tree.reduce[i].from.value].data();
    std::uint8_t* to = contributions_[tree.reduce[i].to.value].data();
    for (std::size_t place = 0; place < member_count; ++place) {
      const unsigned sum = unsigned{from[place]} + to[place];
      to[place] = static_cast<std::uint8_t>(std::min(sum, 255u));  // any count above 1 is an error
    }
  }
  const std::vector<std::uint8_t>& result = contributions_[tree.home.value];
  for (std::size_t place = 0; place < member_count; ++place) {
    if (result[place] == 1) continue;
    const std::string& name = NameOf(members_[place]);
    return RefuseTree(
        result[place] == 0
            ? fmt::format("the contribution of {} never reaches the home", name)
            : fmt::format("the contribution of {} is counted {} times", name, result[place]));
  }
  return absl::OkStatus();
}

absl::Status TreeVerifier::Gather() {
  const Tree& tree = forest_.trees[tree_];
  std::vector<bool> has_result(topology_.nodes().size(), false);
  has_result[tree.home.value] = true;
  order_.resize(tree.gather.size());
  std::iota(order_.begin(), order_.end(), 0u);
  std::stable_sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return tree.gather[a].step < tree.gather[b].step;
  });
  for (const std::uint32_t i : order_) {
    const Edge& edge = tree.gather[i];
    if (!has_result[edge.from.value])
      return Refuse(false, edge, fmt::format("{} never receives the result", NameOf(edge.from)));
    has_result[edge.to.value] = true;
  }
  for (const NodeIndex member : members_)
    if (!has_result[member.value])
      return RefuseTree(fmt::format("{} never receives the result", NameOf(member)));
  return absl::OkStatus();
}

}  // namespace phub::plan
