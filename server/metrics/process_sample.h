// The kernel's statistics of this process. Any thread.
#pragma once

#include <cstdint>

#include "common/base/clock.h"

namespace phub::server {

struct ProcessSample {
  DurationNs cpu_time = 0;  // user and system time of all threads
  std::uint64_t resident_bytes = 0;
  std::uint64_t open_descriptors = 0;
  std::uint64_t descriptors_max = 0;
  std::uint64_t log_lines_dropped = 0;
};

// Fields that cannot be read from /proc are 0.
ProcessSample ReadProcessSample();

}  // namespace phub::server
