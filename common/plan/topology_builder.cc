#include "common/plan/topology_builder.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "fmt/core.h"

namespace phub::plan {

TopologyBuilder::TopologyBuilder(std::string name, std::int64_t unit_bytes_per_s,
                                 std::int64_t latency_ns, bool aggregate)
    : latency_ns_(latency_ns), aggregate_(aggregate) {
  parts_.name = std::move(name);
  parts_.unit_bytes_per_s = unit_bytes_per_s;
}

NodeIndex TopologyBuilder::AddMember(std::optional<Place> place) {
  return AddNode({fmt::format("m{}", member_count_++), NodeKind::kMember, place});
}

NodeIndex TopologyBuilder::AddSwitch(std::string name, std::optional<Place> place) {
  return AddNode({std::move(name), aggregate_ ? NodeKind::kAggregator : NodeKind::kSwitch, place});
}

NodeIndex TopologyBuilder::AddNode(Node node) {
  parts_.nodes.push_back(std::move(node));
  return NodeAt(static_cast<std::int64_t>(parts_.nodes.size()) - 1);
}

void TopologyBuilder::AddLink(NodeIndex from, NodeIndex to, Rational capacity,
                              std::int64_t latency_ns) {
  parts_.links.push_back({from, to, 1, latency_ns});
  capacities_.push_back(capacity);
}

void TopologyBuilder::Connect(NodeIndex a, NodeIndex b, Rational capacity) {
  AddLink(a, b, capacity, latency_ns_);
  AddLink(b, a, capacity, latency_ns_);
}

bool TopologyBuilder::HasLink(NodeIndex from, NodeIndex to) const {
  return std::any_of(parts_.links.begin(), parts_.links.end(),
                     [&](const Link& link) { return link.from == from && link.to == to; });
}

absl::StatusOr<Topology> TopologyBuilder::Build() {
  std::int64_t unit = 1;
  for (const Rational& capacity : capacities_) {
    const auto common = CommonMultiple(unit, capacity.denominator(), kCapacityMax);
    if (!common)
      return absl::InvalidArgumentError(
          "the links' bandwidths have no common unit: round them to simpler numbers");
    unit = *common;
  }
  for (std::size_t i = 0; i < capacities_.size(); ++i) {
    const Wide scaled = Wide{capacities_[i].numerator()} * (unit / capacities_[i].denominator());
    if (scaled > kCapacityMax)
      return absl::InvalidArgumentError(
          fmt::format("link {}->{}: the bandwidth exceeds {} times the common unit of all links",
                      parts_.nodes[parts_.links[i].from.value].name,
                      parts_.nodes[parts_.links[i].to.value].name, kCapacityMax));
    parts_.links[i].capacity = static_cast<std::int64_t>(scaled);
  }
  parts_.unit_capacity = unit;
  return Topology::Create(std::move(parts_));
}

}  // namespace phub::plan
