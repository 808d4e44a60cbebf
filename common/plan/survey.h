// Has the ways between all members measured, two at a time: first every pair by itself, so that no
// probe meets another one, then every two of the groups that show, with as many pairs at once as
// there are. Who measures is the caller's.
//
// Blocking; starts and joins the threads that pairs at once need, from which `probe` is called.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/plan/measured.h"

namespace phub::plan {

using RankPair = std::pair<std::uint32_t, std::uint32_t>;

// Every pair of `count` members once, in rounds of pairs without a member in common: the circle
// method of tournaments. One after the other, so nobody is probed twice in a row where that is
// possible.
std::vector<std::vector<RankPair>> Tournament(std::uint32_t count);

// From the first of a pair to the second, and back. All are positive.
struct PairMeasure {
  double round_trip_s = 0;
  double out_bytes_per_s = 0;  // without pauses
  double back_bytes_per_s = 0;
  double out_mean_bytes_per_s = 0;  // of all the time
  double back_mean_bytes_per_s = 0;
};
using ProbeFunction =
    std::function<absl::StatusOr<PairMeasure>(RankPair pair, DurationNs duration)>;

struct SurveyOptions {
  DurationNs duration = 500 * kMillisecond;  // of one probe
  std::uint32_t repeat = 2;                  // probes of each pair; the best counts
  std::function<void(const std::string& what)> progress = {};  // may be empty
};

struct Surveyed {
  Measured measured;
  RankGroups groups;
  SquareMatrix between;  // as TopologyOf has it
};

// The first error of a probe ends it.
absl::StatusOr<Surveyed> Survey(std::uint32_t count, const SurveyOptions& options,
                                const ProbeFunction& probe);

}  // namespace phub::plan
