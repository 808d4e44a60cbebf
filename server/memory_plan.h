// How much memory jobs may reserve: the setting memory_max, held against the machine.
#pragma once

#include <cstdint>

#include "common/base/memory_limit.h"
#include "server/config/settings.h"

namespace phub::server {

// memory_max = auto is three quarters of the limit: the rest is for phubd itself, for memory that
// the kernel counts for it (sockets, files), and on a shared host for others.
std::uint64_t PlanMemory(const Settings& settings, const MemoryLimit& limit);

// Logs the limit, and warns if memory_max is above it: the kernel would then kill phubd, and with
// it all jobs, before a job is refused.
void LogMemoryPlan(const Settings& settings, const MemoryLimit& limit);

}  // namespace phub::server
