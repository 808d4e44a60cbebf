// What the kernels bench prints and writes. One thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/kernels/measure.h"

namespace phub::bench {

void PrintHeader(const Settings& settings, std::uint32_t threads);
void PrintRow(const Result& result);  // at once: a whole run takes minutes
// How many cases reached their goals, and which did not.
void PrintSummary(const std::vector<Result>& results);

// A list of objects, one for each case. Fields of all of phub's benches: case, system, median_s,
// min_s, mad_s, cpu_s, ceiling_s, runs.
absl::Status WriteJson(const std::string& path, const Settings& settings,
                       const std::vector<Result>& results);

}  // namespace phub::bench
