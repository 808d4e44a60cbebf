// What the kernel counts of this process. Any thread.
#pragma once

#include <cstdint>

#include "common/base/clock.h"

namespace phub::server {

struct ProcessSample {
  DurationNs cpu_time = 0;  // of all threads, user and system
  std::uint64_t resident_bytes = 0;
  std::uint64_t open_descriptors = 0;
  std::uint64_t descriptors_max = 0;
};

// Zeros where /proc cannot be read.
ProcessSample ReadProcessSample();

}  // namespace phub::server
