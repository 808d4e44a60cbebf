// What the page shows, as JSON: this daemon, its tenants and its jobs, as `phubctl -o json` prints
// them. Any thread without control's lock.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/control/ports/control_thread.h"
#include "server/tenant/directory.h"

namespace phub::server {

// At most so many tenants and jobs are shown; the oldest ones. The list's next_page_token is not
// empty if there are more.
inline constexpr int kTenantsShownMax = 512;
inline constexpr int kJobsShownMax = 512;
inline constexpr std::size_t kJobBytesShownMax = 8 << 20;

// Asks control in bounded turns. `racks`: control endpoints of all racks. DEADLINE_EXCEEDED:
// control did not answer.
absl::StatusOr<std::string> ReadPageStatus(ControlThread& control, const Directory& directory,
                                           std::span<const std::string> racks);

// A picture (SVG) of the plan of a job that spans racks. NOT_FOUND: there is no such job or plan.
absl::StatusOr<std::string> DrawPlanOf(ControlThread& control, const std::string& tenant,
                                       const std::string& job);

}  // namespace phub::server
