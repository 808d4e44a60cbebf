// Loads TACCL's sketches with their profiles, for phubctl plan. One thread.
#pragma once

#include "absl/status/statusor.h"
#include "client/cli/plan.h"
#include "common/plan/sketches/taccl_expand.h"

namespace phub::client::cli {

struct LoadedSketch {
  plan::TacclSketch sketch;
  plan::TacclProfile profile;
  plan::ExpandedSketch expanded;
};

// Reads the files of --sketch and --profile. Errors name the file.
absl::StatusOr<LoadedSketch> LoadTacclSketch(const PlanArguments& arguments);

}  // namespace phub::client::cli
