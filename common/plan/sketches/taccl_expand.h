// Expands TACCL's sketch of one node, with the profile of a node, to a topology of all nodes. Pure;
// any thread.
//
// Members are the GPUs g0, g1, ..., node by node. A link is a direct link from GPU to GPU, except:
//  - GPUs on one switch of the sketch have a switch between them, with a link in each direction
//    per GPU. These are its ports: TACCL counts a link for each pair of GPUs, and limits what a GPU
//    sends and receives over all of them together.
//  - With more than two nodes, each GPU that sends to other nodes has a switch "g0.out" and each
//    that receives has a switch "g1.in". Their links to the GPU are ports in the same sense.
//
// The bandwidth of NICs is divided evenly: a link between nodes takes remote_beta * links / NICs
// for a chunk, where `links` is the number of links from one node to another. TACCL also rounds
// this down to an integer; phub does not.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/plan/sketches/sketch_rules.h"
#include "common/plan/sketches/taccl_profile.h"
#include "common/plan/sketches/taccl_sketch.h"
#include "common/plan/topology.h"

namespace phub::plan {

struct ExpandedSketch {
  Topology topology;
  SketchRules rules;
  // TACCL's counts: ordered pairs of GPUs that exchange data without another GPU between them.
  std::size_t pairs = 0;         // in all
  std::size_t pairs_across = 0;  // on different nodes
  Rational chunk_time_across;    // between nodes, latency included; in time units of the profile
};

// Errors name the field of the sketch that contradicts the profile, and the reason.
absl::StatusOr<ExpandedSketch> Expand(const TacclSketch& sketch, const TacclProfile& profile);

}  // namespace phub::plan
