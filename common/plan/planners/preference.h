// How well trees fit to the preference of a sketch. Pure; any thread.
#pragma once

#include "common/plan/planners/out_forest.h"
#include "common/plan/sketches/sketch_rules.h"
#include "common/plan/topology.h"

namespace phub::plan {

// The lower, the better. REQUIRES: the trees grew on `topology`, which may be reversed.
double RegretOf(const Topology& topology, const OutForest& forest, const SketchRules& rules);

}  // namespace phub::plan
