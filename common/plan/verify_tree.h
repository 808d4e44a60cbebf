// Executes one tree of a forest symbolically: the core of the verifier. Private to common/plan.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

// Reuses its scratch memory for all trees. One thread.
class TreeVerifier {
 public:
  TreeVerifier(const Topology& topology, const Forest& forest);
  // REQUIRES: the edges' ends and paths are valid.
  absl::Status Verify(std::size_t tree);

 private:
  absl::Status CheckShape(bool reduces);
  absl::Status CheckCircle(bool reduces);
  absl::Status CheckOrder();
  absl::Status Reduce();
  absl::Status Gather();
  absl::Status Refuse(bool reduces, const Edge& edge, const std::string& reason) const;
  absl::Status RefuseTree(const std::string& reason) const;
  const std::vector<Edge>& Edges(bool reduces) const;
  const std::string& NameOf(NodeIndex node) const { return topology_.node(node).name; }

  const Topology& topology_;
  const Forest& forest_;
  const std::span<const NodeIndex> members_;  // that exchange data
  std::size_t tree_ = 0;
  std::vector<std::uint32_t> in_count_, out_count_;       // by node, for one phase
  std::vector<std::int64_t> last_arrival_;                // by node: step; -1: none
  std::vector<std::vector<std::uint8_t>> contributions_;  // [node][place in members_]: count
  std::vector<std::uint32_t> order_;
};

}  // namespace phub::plan
