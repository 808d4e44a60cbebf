// How much memory this process may use: the host's, or less if a control group limits it, as in a
// container. Any thread; reads files.
#pragma once

#include <cstdint>
#include <string>

namespace phub {

struct MemoryLimit {
  std::uint64_t bytes = 0;
  std::string source;  // "RAM", or the control group's file
};

// Understands control groups of versions 1 and 2; the lowest limit of the process's group and the
// groups around it counts. `root`: where /proc and /sys are; for tests.
MemoryLimit ReadMemoryLimit(const std::string& root = "");

}  // namespace phub
