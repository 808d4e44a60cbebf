// One tree of a forest, executed symbolically: the verifier's core. Private to common/plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::plan {

// Scratch memory is kept between trees. One thread.
class TreeVerifier {
 public:
  TreeVerifier(const Topology& topology, const Forest& forest);
  // The edges' ends and paths have been checked already.
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
  std::size_t tree_ = 0;
  std::vector<std::uint32_t> in_count_, out_count_;       // of one phase, by node
  std::vector<std::int64_t> last_arrival_;                // step by node; -1: none
  std::vector<std::vector<std::uint8_t>> contributions_;  // node -> member rank -> times
  std::vector<std::uint32_t> order_;
};

}  // namespace phub::plan
