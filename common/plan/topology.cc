#include "common/plan/topology.h"

#include <utility>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/base/printable.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

std::uint64_t EndsKey(NodeIndex from, NodeIndex to) {
  return (std::uint64_t{from.value} << 32) | to.value;
}

absl::Status Invalid(std::string message) { return absl::InvalidArgumentError(std::move(message)); }

// Groups links by one of their ends. Counting sort keeps the order of links.
template <typename End>
void GroupByEnd(std::span<const Link> links, std::size_t node_count, End end,
                std::vector<LinkIndex>& grouped, std::vector<std::uint32_t>& start) {
  start.assign(node_count + 1, 0);
  for (const Link& link : links) ++start[end(link).value + 1];
  for (std::size_t i = 0; i < node_count; ++i) start[i + 1] += start[i];
  grouped.resize(links.size());
  std::vector<std::uint32_t> next(start.begin(), start.end() - 1);
  for (std::uint32_t i = 0; i < links.size(); ++i)
    grouped[next[end(links[i]).value]++] = LinkIndex{i};
}

}  // namespace

std::string_view KindName(NodeKind kind) {
  switch (kind) {
    case NodeKind::kMember: return "member";
    case NodeKind::kAggregator: return "aggregator";
    case NodeKind::kSwitch: return "switch";
  }
  return "?";
}

std::optional<NodeKind> ParseKind(std::string_view text) {
  for (const NodeKind kind : {NodeKind::kMember, NodeKind::kAggregator, NodeKind::kSwitch})
    if (text == KindName(kind)) return kind;
  return std::nullopt;
}

absl::StatusOr<Topology> Topology::Create(TopologyParts parts) {
  Topology topology;
  topology.parts_ = std::move(parts);
  if (absl::Status status = topology.Check(); !status.ok()) return status;
  topology.Index();
  if (absl::Status status = topology.CheckLinks(); !status.ok()) return status;
  if (absl::Status status = topology.CheckReachability(); !status.ok()) return status;
  topology.is_symmetric_ = true;
  for (std::uint32_t i = 0; i < topology.links().size(); ++i)
    if (!topology.MirrorOf(LinkIndex{i})) topology.is_symmetric_ = false;
  return topology;
}

// Checks that need no index: counts, ranges and ends of links.
absl::Status Topology::Check() const {
  const auto& [name, nodes, links, unit_capacity, unit_bytes_per_s, forward] = parts_;
  if (nodes.size() > kNodesMax)
    return Invalid(
        fmt::format("the topology has {} nodes; at most {} are allowed", nodes.size(), kNodesMax));
  if (links.size() > kLinksMax)
    return Invalid(
        fmt::format("the topology has {} links; at most {} are allowed", links.size(), kLinksMax));
  if (unit_capacity < 1 || unit_capacity > kCapacityMax)
    return Invalid(fmt::format("the unit capacity is {}; it must be from 1 to {}", unit_capacity,
                               kCapacityMax));
  if (unit_bytes_per_s < 1 || unit_bytes_per_s > kUnitBytesPerSecondMax)
    return Invalid(
        fmt::format("the bandwidth of a unit link is {} bytes/s; it must be from 1 to {}",
                    unit_bytes_per_s, kUnitBytesPerSecondMax));
  std::size_t member_count = 0;
  for (const Node& node : nodes) {
    if (node.name.empty()) return Invalid("a node has an empty name");
    if (node.name.size() > 64)
      return Invalid(fmt::format("the name of node '{}' is longer than 64 bytes",
                                 Printable(node.name, 32)));
    member_count += node.kind == NodeKind::kMember ? 1 : 0;
  }
  if (member_count < 2)
    return Invalid(
        fmt::format("the topology has {} member(s); an exchange needs at least 2", member_count));
  if (member_count > kMembersMax)
    return Invalid(fmt::format("the topology has {} members; at most {} are allowed", member_count,
                               kMembersMax));
  for (const Link& link : links) {
    if (link.from.value >= nodes.size() || link.to.value >= nodes.size())
      return Invalid(fmt::format("a link connects nodes {} and {}, but there are only {} nodes",
                                 link.from.value, link.to.value, nodes.size()));
  }
  return absl::OkStatus();
}

void Topology::Index() {
  const std::size_t node_count = parts_.nodes.size();
  rank_of_.assign(node_count, 0);
  for (std::uint32_t i = 0; i < node_count; ++i) {
    node_by_name_.emplace(parts_.nodes[i].name, NodeIndex{i});
    if (parts_.nodes[i].kind == NodeKind::kMember) {
      rank_of_[i] = static_cast<std::uint32_t>(members_.size());
      members_.push_back(NodeIndex{i});
    }
    has_aggregators_ |= parts_.nodes[i].kind == NodeKind::kAggregator;
  }
  for (std::uint32_t i = 0; i < node_count; ++i)
    if (parts_.nodes[i].kind != NodeKind::kMember)
      rank_of_[i] = static_cast<std::uint32_t>(members_.size()) + i;
  GroupByEnd(
      parts_.links, node_count, [](const Link& l) { return l.from; }, out_links_, out_start_);
  GroupByEnd(
      parts_.links, node_count, [](const Link& l) { return l.to; }, in_links_, in_start_);
  for (std::uint32_t i = 0; i < parts_.links.size(); ++i)
    link_by_ends_.emplace(EndsKey(parts_.links[i].from, parts_.links[i].to), LinkIndex{i});
}

absl::Status Topology::CheckLinks() const {
  for (std::uint32_t i = 0; i < parts_.nodes.size(); ++i) {
    if (FindNode(parts_.nodes[i].name) != NodeIndex{i})
      return Invalid(fmt::format("two nodes are named '{}'", parts_.nodes[i].name));
  }
  for (std::uint32_t i = 0; i < parts_.links.size(); ++i) {
    const Link& link = parts_.links[i];
    const std::string name = LinkName(LinkIndex{i});
    if (link.from == link.to)
      return Invalid(fmt::format("link {} connects a node to itself", name));
    if (link.capacity < 1)
      return Invalid(fmt::format("link {}: the bandwidth must be positive", name));
    if (link.capacity > kCapacityMax)
      return Invalid(
          fmt::format("link {}: the bandwidth exceeds {} common units", name, kCapacityMax));
    if (link.latency_ns < 0 || link.latency_ns > kLatencyNsMax)
      return Invalid(fmt::format("link {}: the latency is {} ns; it must be from 0 to {} ns", name,
                                 link.latency_ns, kLatencyNsMax));
    if (FindLink(link.from, link.to) != LinkIndex{i})
      return Invalid(
          fmt::format("link {} is defined twice; define parallel cables as one link with the sum "
                      "of their bandwidths",
                      name));
  }
  return absl::OkStatus();
}

// Searches from the first member along the links and against them; together this covers all pairs.
// The search passes through members even if they do not forward: a plan may relay through them.
absl::Status Topology::CheckReachability() const {
  for (const bool forwards : {true, false}) {
    std::vector<bool> reached(parts_.nodes.size(), false);
    std::vector<NodeIndex> stack{members_.front()};
    reached[members_.front().value] = true;
    while (!stack.empty()) {
      const NodeIndex node = stack.back();
      stack.pop_back();
      for (const LinkIndex index : forwards ? OutLinks(node) : InLinks(node)) {
        const NodeIndex next = forwards ? link(index).to : link(index).from;
        if (reached[next.value]) continue;
        reached[next.value] = true;
        stack.push_back(next);
      }
    }
    for (const NodeIndex member : members_) {
      if (reached[member.value]) continue;
      const std::string& first = node(members_.front()).name;
      const std::string& other = node(member).name;
      return Invalid(fmt::format("there is no path from member '{}' to member '{}'",
                                 forwards ? first : other, forwards ? other : first));
    }
  }
  return absl::OkStatus();
}

std::span<const LinkIndex> Topology::OutLinks(NodeIndex index) const {
  return std::span(out_links_)
      .subspan(out_start_[index.value], out_start_[index.value + 1] - out_start_[index.value]);
}

std::span<const LinkIndex> Topology::InLinks(NodeIndex index) const {
  return std::span(in_links_).subspan(in_start_[index.value],
                                      in_start_[index.value + 1] - in_start_[index.value]);
}

std::optional<LinkIndex> Topology::FindLink(NodeIndex from, NodeIndex to) const {
  const auto found = link_by_ends_.find(EndsKey(from, to));
  if (found == link_by_ends_.end()) return std::nullopt;
  return found->second;
}

std::optional<NodeIndex> Topology::FindNode(std::string_view name) const {
  const auto found = node_by_name_.find(std::string(name));
  if (found == node_by_name_.end()) return std::nullopt;
  return found->second;
}

std::optional<LinkIndex> Topology::MirrorOf(LinkIndex index) const {
  const auto back = FindLink(link(index).to, link(index).from);
  if (!back || link(*back).capacity != link(index).capacity) return std::nullopt;
  return back;
}

Topology Topology::Reversed() const {
  TopologyParts parts = parts_;
  for (Link& link : parts.links) std::swap(link.from, link.to);
  absl::StatusOr<Topology> reversed = Create(std::move(parts));
  PHUB_CHECK(reversed.ok(), "topology={} status={}", name(), reversed.status().ToString());
  return *std::move(reversed);
}

Rational Topology::CapacityOf(LinkIndex index) const {
  const auto capacity = Rational::Make(link(index).capacity, parts_.unit_capacity);
  PHUB_CHECK(capacity.has_value());
  return *capacity;
}

double Topology::BytesPerSecond(LinkIndex index) const {
  return static_cast<double>(parts_.unit_bytes_per_s) *
         (static_cast<double>(link(index).capacity) / static_cast<double>(parts_.unit_capacity));
}

std::string Topology::LinkName(LinkIndex index) const {
  return fmt::format("{}->{}", node(link(index).from).name, node(link(index).to).name);
}

}  // namespace phub::plan
