// How often a process woke up.
#pragma once

#include <fmt/format.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace phub {

// How often the threads that `pid` has now waited for something (voluntary context switches).
// Threads that end between two calls make the difference too small.
inline std::uint64_t WakeupsOf(pid_t pid) {
  std::uint64_t sum = 0;
  std::error_code error;
  const std::filesystem::path threads = fmt::format("/proc/{}/task", pid);
  for (const auto& thread : std::filesystem::directory_iterator(threads, error)) {
    std::ifstream status(thread.path() / "status");
    for (std::string word; status >> word;) {
      std::uint64_t switches = 0;
      if (word == "voluntary_ctxt_switches:" && status >> switches) sum += switches;
    }
  }
  return sum;
}

}  // namespace phub
