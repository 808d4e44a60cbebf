#include "server/memory_plan.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/base/units.h"

namespace phub::server {
namespace {

constexpr std::uint64_t kAtLeast = std::uint64_t{16} << 20;  // the setting's minimum

}  // namespace

std::uint64_t PlanMemory(const Settings& settings, const MemoryLimit& limit) {
  if (settings.memory_max != 0) return settings.memory_max;
  return std::max(limit.bytes / 4 * 3, kAtLeast);
}

void LogMemoryPlan(const Settings& settings, const MemoryLimit& limit) {
  const std::uint64_t planned = PlanMemory(settings, limit);
  LogInfo("event=memory_planned memory_max={} auto={} available={} source={}", ExactBytes(planned),
          settings.memory_max == 0, ExactBytes(limit.bytes), limit.source);
  if (planned <= limit.bytes) return;
  LogWarning(
      "event=memory_max_above_limit memory_max={} available={} source={} reason=\"the kernel would "
      "kill phubd before it refuses a job; lower memory_max, or set it to auto\"",
      ExactBytes(planned), ExactBytes(limit.bytes), limit.source);
}

}  // namespace phub::server
