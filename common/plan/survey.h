// Measures bandwidth and round trips between all members. First it probes every pair alone, without
// interference by other probes. Then it probes every two of the groups found, with as many
// concurrent pairs as possible. The caller provides the probe.
//
// Blocks until done. Calls `probe` from its own threads, one per concurrent pair.
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

// Every pair of `count` members once, in rounds of pairs without a common member (the circle method
// of tournaments). If pairs are probed in this order, a member is rarely probed twice in a row.
std::vector<std::vector<RankPair>> Tournament(std::uint32_t count);

// `out`: from the first of a pair to the second; `back`: the opposite direction. All are positive.
struct PairMeasure {
  double round_trip_s = 0;
  double out_bytes_per_s = 0;  // excluding pauses
  double back_bytes_per_s = 0;
  double out_mean_bytes_per_s = 0;  // including pauses
  double back_mean_bytes_per_s = 0;
};
using ProbeFunction =
    std::function<absl::StatusOr<PairMeasure>(RankPair pair, DurationNs duration)>;

struct SurveyOptions {
  DurationNs duration = 500 * kMillisecond;  // of one probe
  std::uint32_t repeat = 2;                  // probes per pair; the best result is used
  std::function<void(const std::string& what)> progress = {};  // may be empty
};

struct Surveyed {
  Measured measured;
  RankGroups groups;
  SquareMatrix between;  // see TopologyOf
};

// Returns the first error of a probe.
absl::StatusOr<Surveyed> Survey(std::uint32_t count, const SurveyOptions& options,
                                const ProbeFunction& probe);

}  // namespace phub::plan
