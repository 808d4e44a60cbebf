#include "common/base/memory_limit.h"

#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

namespace phub {
namespace {

constexpr std::string_view kVersion2 = "/sys/fs/cgroup";
constexpr std::string_view kVersion1 = "/sys/fs/cgroup/memory";

// "MemTotal:       24600000 kB"
std::uint64_t HostBytes(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  std::uint64_t kibibytes = 0;
  file >> name >> kibibytes;
  return kibibytes * 1024;
}

// The number in the file; nothing if it does not exist, or if it says "max".
std::optional<std::uint64_t> ReadBytes(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  std::uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return bytes;
}

// Applies the limits of a group and of all groups around it. In a container, `group` may be the
// host's path, which does not exist here; then the file at the top is the container's.
void ApplyGroup(const std::string& root, std::string_view mount, std::string_view group,
                std::string_view file, MemoryLimit& limit) {
  while (true) {
    while (group.ends_with('/')) group.remove_suffix(1);
    std::string path(mount);
    path.append(group).append("/").append(file);
    const auto bytes = ReadBytes(root + path);
    // Version 1 writes a number above any memory for "no limit".
    if (bytes.has_value() && *bytes < limit.bytes) limit = {*bytes, path};
    if (group.empty()) return;
    group = group.substr(0, group.rfind('/'));
  }
}

bool HasMemory(std::string_view controllers) {
  while (!controllers.empty()) {
    const std::size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == "memory") return true;
    controllers = comma == std::string_view::npos ? "" : controllers.substr(comma + 1);
  }
  return false;
}

}  // namespace

MemoryLimit ReadMemoryLimit(const std::string& root) {
  MemoryLimit limit{HostBytes(root), "RAM"};
  // Lines such as "0::/system.slice/phubd.service" (version 2) and "5:memory:/docker/1f3a".
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view text = line;
    const std::string_view controllers = text.substr(first + 1, second - first - 1);
    const std::string_view group = text.substr(second + 1);
    if (controllers.empty()) ApplyGroup(root, kVersion2, group, "memory.max", limit);
    if (HasMemory(controllers)) {
      ApplyGroup(root, kVersion1, group, "memory.limit_in_bytes", limit);
    }
  }
  return limit;
}

}  // namespace phub
