// The front of a phubd: a child process of it, which a test finds in /proc.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace phub::process {

// A number of /proc/PID/status; 0 if the process has ended.
inline std::uint64_t StatusField(pid_t pid, const std::string& field) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field)) return std::stoull(line.substr(field.size()));
  }
  return 0;
}

// 0: no front runs at the moment.
inline pid_t FrontOf(pid_t daemon) {
  std::error_code ignored;  // processes end while their folders are read
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto pid = static_cast<pid_t>(std::stol(name));
    if (StatusField(pid, "PPid:") == static_cast<std::uint64_t>(daemon)) return pid;
  }
  return 0;
}

}  // namespace phub::process
