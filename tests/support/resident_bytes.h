// The resident memory of a process.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace phub {

// 0 if there is no such process.
inline std::uint64_t ResidentBytesOf(pid_t pid) {
  std::ifstream statm(fmt::format("/proc/{}/statm", pid));
  std::uint64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace phub
