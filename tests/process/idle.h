// Whether a process that has nothing to do leaves the processor alone.
#pragma once

#include <gtest/gtest.h>

#include "tests/process/process.h"

namespace phub::process {

// Whether `process` wakes up under 200 times a second and takes under a quarter of a core, in the
// best of several windows of two seconds: a machine that was suspended has work to catch up on.
// What one wake-up costs depends on the machine (20 to 400 us were seen), so the number of wake-ups
// is counted. The limit on time finds a thread that polls.
::testing::AssertionResult IsIdle(const Process& process);

}  // namespace phub::process
