// The output of the kernels bench: printed rows and the JSON file. One thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/kernels/measure.h"

namespace phub::bench {

void PrintHeader(const Settings& settings, std::uint32_t threads);
void PrintRow(const Result& result);  // Prints immediately, since a whole run takes minutes.
// Prints how many cases reached their goals, and which did not.
void PrintSummary(const std::vector<Result>& results);

// Writes a list of objects, one per case. Fields common to all benches of phub: case, system,
// median_s, min_s, mad_s, cpu_s, ceiling_s, runs.
absl::Status WriteJson(const std::string& path, const Settings& settings,
                       const std::vector<Result>& results);

}  // namespace phub::bench
