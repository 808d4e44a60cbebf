#include "server/control/jobs/grant_needs.h"

#include <fmt/format.h>

#include "common/base/status_text.h"

namespace phub::server {

Charges ChargesOf(const ControlOptions& options, const JobSettings& settings) {
  const bool with_job = options.is_anchor() && (settings.racks == 0 || options.rack_index == 0);
  return {.job = with_job,
          .workers = options.is_anchor() && !options.is_aggregator(),
          .keys = with_job};
}

Usage GrantNeededBy(const ControlOptions& options, const JobSettings& settings) {
  const Charges charges = ChargesOf(options, settings);
  return {.jobs = charges.job ? 1u : 0u, .workers = charges.workers ? settings.world_size : 0};
}

absl::Status OfJob(const std::string& job, const absl::Status& covered) {
  if (covered.ok()) return covered;
  return absl::Status(covered.code(), fmt::format("job {}: {}", job, MessageOf(covered)));
}

}  // namespace phub::server
