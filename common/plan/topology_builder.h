// Builds a topology node by node, with capacities as fractions of a unit link, and computes their
// common unit. Used by the generators and the TOML reader. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/topology.h"

namespace phub::plan {

inline NodeIndex NodeAt(std::int64_t index) { return NodeIndex{static_cast<std::uint32_t>(index)}; }

class TopologyBuilder {
 public:
  TopologyBuilder(std::string name, std::int64_t unit_bytes_per_s, std::int64_t latency_ns,
                  bool aggregate);

  NodeIndex AddMember(std::optional<Place> place);  // named m0, m1, ...
  NodeIndex AddSwitch(std::string name, std::optional<Place> place);
  NodeIndex AddNode(Node node);
  // AddLink adds one direction, Connect both. `capacity`: in unit links; must be positive.
  void AddLink(NodeIndex from, NodeIndex to, Rational capacity, std::int64_t latency_ns);
  void Connect(NodeIndex a, NodeIndex b, Rational capacity);
  void ConnectOneWay(NodeIndex from, NodeIndex to, Rational capacity) {
    AddLink(from, to, capacity, latency_ns_);
  }
  bool HasLink(NodeIndex from, NodeIndex to) const;
  void SetMembersForward() { parts_.members_forward = true; }

  // Fails like Topology::Create, or if the capacities have no common unit within the limits.
  absl::StatusOr<Topology> Build();

 private:
  TopologyParts parts_;
  std::vector<Rational> capacities_;  // by link of parts_
  std::int64_t latency_ns_;
  bool aggregate_;
  std::int64_t member_count_ = 0;
};

}  // namespace phub::plan
