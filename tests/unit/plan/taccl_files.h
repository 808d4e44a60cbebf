// Sketches and profiles in TACCL's format, for tests.
#pragma once

#include <string>

#include "common/plan/sketches/taccl_expand.h"
#include "fmt/core.h"
#include "tests/unit/plan/plan_support.h"

namespace phub::plan {

// Costs in microseconds for a chunk of 1 MiB, as measured by the authors of TACCL.
inline std::string Ndv2Profile() {
  return R"({"name": "NDv2_1MB", "gpus_per_node": 8, "nics_per_node": 1, "alpha": 0.3,
             "node_betas_list": [23, 46], "node_invbws_list": [23, 46],
             "remote_alpha": 2.6, "remote_beta": 105, "remote_invbw": 107})";
}
inline std::string Dgx2Profile() {
  return R"({"name": "DGX2_1MB", "gpus_per_node": 16, "nics_per_node": 8, "alpha": 0.3,
             "node_betas_list": [8], "node_invbws_list": [8],
             "remote_alpha": 2.6, "remote_beta": 105, "remote_invbw": 107})";
}
// The same times for a chunk of 1 KiB, times 100.
inline std::string Ndv2SmallProfile() {
  return R"({"name": "NDv2_1KB", "gpus_per_node": 8, "nics_per_node": 1, "alpha": 30,
             "node_betas_list": [2.24, 4.50], "node_invbws_list": [32.25, 34.50],
             "remote_alpha": 260, "remote_beta": 10.25, "remote_invbw": 270.25})";
}
inline std::string Dgx2SmallProfile() {
  return R"({"name": "DGX2_1KB", "gpus_per_node": 16, "nics_per_node": 8, "alpha": 30,
             "node_betas_list": [1], "node_invbws_list": [31],
             "remote_alpha": 260, "remote_beta": 10.25, "remote_invbw": 270})";
}

// `connections`: the value of internode_conn, with further fields of the relay.
inline std::string SketchText(int nodes, const std::string& node, const std::string& connections,
                              const std::string& symmetry, int chunks = 1) {
  const std::string relay = nodes == 1 ? ""
                                       : fmt::format(R"("internode_sketch": {{"strategy": "relay",
                                  "internode_conn": {}}},)",
                                                     connections);
  return fmt::format(R"({{"nnodes": {}, "intranode_sketch": {}, {}
                         "symmetry_offsets": {}, "hyperparameters": {{"input_chunkup": {}}}}})",
                     nodes, node, relay, symmetry, chunks);
}

inline const std::string kDirectLinks = R"({"strategy": "none"})";
inline const std::string kPairsOfDgx2 =
    R"({"1": [0], "3": [2], "5": [4], "7": [6], "9": [8], "11": [10], "13": [12], "15": [14]})";
inline const std::string kSendersOfDgx2 =
    R"(, "gpus_to_sender_rev_map": {"1": [0, 1], "3": [2, 3], "5": [4, 5], "7": [6, 7],
         "9": [8, 9], "11": [10, 11], "13": [12, 13], "15": [14, 15]})";

// All GPUs of a DGX-2 on its switch.
inline std::string SwitchOf16(const std::string& strategy) {
  return fmt::format(R"({{"strategy": "switch",
      "switches": [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]],
      "switch_hyperedge_strategy": ["{}"]}})",
                     strategy);
}

inline absl::StatusOr<ExpandedSketch> Expanded(const std::string& sketch,
                                               const std::string& profile,
                                               const TacclUnits& units = {}) {
  const absl::StatusOr<TacclSketch> parsed = ParseTacclSketch(sketch);
  if (!parsed.ok()) return parsed.status();
  const absl::StatusOr<TacclProfile> costs = ParseTacclProfile(profile, units);
  if (!costs.ok()) return costs.status();
  return Expand(*parsed, *costs);
}

}  // namespace phub::plan
