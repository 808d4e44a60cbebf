#include "client/cli/scheduling.h"

#include <fstream>

namespace phub::client::cli {

using transport::LaneFinding;

// With autogroups the kernel divides cores among sessions first, and among threads only then. A
// core loop then yields to each worker that wakes, and workers wake all the time (bench/NOTES.md).
// sched(7) has the feature.
std::vector<LaneFinding> SchedulingFindings(const std::string& setting) {
  std::ifstream file(setting);
  int enabled = 0;
  if (!(file >> enabled)) return {};
  if (enabled == 0)
    return {{.level = LaneFinding::Level::kGood,
             .subject = "scheduling",
             .text = "the kernel divides cores among threads (sched_autogroup_enabled is 0)",
             .fix = ""}};
  return {{.level = LaneFinding::Level::kAdvice,
           .subject = "scheduling",
           .text = "the kernel divides cores among sessions (sched_autogroup_enabled is 1); if "
                   "phubd and workers share cores, exchanges take up to 1.3 times as long",
           .fix = "sysctl -w kernel.sched_autogroup_enabled=0, or give phubd cores of its own"}};
}

}  // namespace phub::client::cli
