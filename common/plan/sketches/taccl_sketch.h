// Reads TACCL's communication sketches (see taccl_profile.h): how many nodes there are, which GPUs
// send to other nodes, and which freedom a plan has. Pure: it opens no file. Any thread.
//
//   { "nnodes": 2,
//     "intranode_sketch": {"strategy": "none"},     or "switch" with "switches" and
//                                                   "switch_hyperedge_strategy", "minmax", "maxmin"
//     "internode_sketch": {"strategy": "relay",     only with more than one node
//        "internode_conn": {"0": [1]},              GPU 0 of each node sends to GPU 1 of each other
//                                                   node; or "fully-connected", "direct-map"
//        "gpus_to_sender_rev_map": {"0": [0, 1]},   optional: GPU 0 sends only data of GPUs 0 and 1
//        "enforce_ordering": true},                 optional: and its own first
//     "symmetry_offsets": [[2, 16]],                rank r is like (r + 2) mod 16, in every
//                                                   block of 16 ranks
//     "hyperparameters": {"input_chunkup": 1} }     chunks of each rank
//
// Numbers of GPUs are places within a node. Fields that this reader does not know are errors.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace phub::plan {

inline constexpr std::uint32_t kChunksPerRankMax = 64;

// Among plans that take the same time, which one is preferred.
enum class PlanPreference : std::uint8_t {
  kAny,
  kFewestPairs,  // uc-min: GPUs that exchange data through a switch
  kMostPairs,    // uc-max
  kLowestPeak,   // minmax: the busiest link carries as little as possible
  kHighestLow,   // maxmin: the least busy link carries as much as possible
};

// r -> (r + offset) mod block, in each block of `block` ranks.
struct Rotation {
  std::uint32_t offset = 0;
  std::uint32_t block = 0;
};

using PlaceLists = std::map<std::uint32_t, std::vector<std::uint32_t>>;  // by place

struct TacclSketch {
  enum class Connect : std::uint8_t { kListed, kFullyConnected, kDirectMap };
  struct Relay {
    Connect connect = Connect::kListed;
    PlaceLists connections;             // sender -> receivers; only with kListed
    std::optional<PlaceLists> carries;  // sender -> GPUs whose data it sends
    bool own_first = false;
  };

  std::uint32_t nodes = 0;
  std::vector<std::vector<std::uint32_t>> switches;  // GPUs of each
  PlanPreference preference = PlanPreference::kAny;
  std::optional<Relay> relay;  // exists with more than one node
  std::vector<Rotation> rotations;
  std::uint32_t chunks_per_rank = 0;
};

// Errors name the field and the reason: "internode_sketch.internode_conn: ...".
absl::StatusOr<TacclSketch> ParseTacclSketch(std::string_view text);

}  // namespace phub::plan
