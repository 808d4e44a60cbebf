#include "server/port_owner.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

namespace phub::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kListening = "0A";
constexpr std::string_view kDeleted = " (deleted)";

// Adds the inodes of the sockets that listen on the port, from /proc/net/tcp or tcp6.
void AddListening(const char* path, std::uint16_t port, std::set<std::string>& inodes) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // the titles
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
        timeout >> inode;
    const std::size_t colon = local.rfind(':');
    if (state != kListening || colon == std::string::npos) continue;
    unsigned at = 0;
    std::from_chars(local.data() + colon + 1, local.data() + local.size(), at, 16);
    if (at == port) inodes.insert(inode);
  }
}

bool HasSocket(const fs::path& process, const std::set<std::string>& inodes) {
  std::error_code error;  // the process has ended, or belongs to another user
  for (fs::directory_iterator each(process / "fd", error), end; !error && each != end;
       each.increment(error)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(each->path(), gone);
    constexpr std::string_view kSocket = "socket:[";
    if (gone || !target.starts_with(kSocket)) continue;
    if (inodes.contains(target.substr(kSocket.size(), target.size() - kSocket.size() - 1))) {
      return true;
    }
  }
  return false;
}

// After an upgrade, the executable of a running process has been replaced.
std::string ProgramOf(const std::string& process) {
  std::error_code error;
  std::string path = fs::read_symlink("/proc/" + process + "/exe", error);
  if (path.ends_with(kDeleted)) path.resize(path.size() - kDeleted.size());
  return path;
}

std::string NameOf(const std::string& program) { return fs::path(program).filename(); }

pid_t ParentOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("PPid:")) return static_cast<pid_t>(std::stol(line.substr(5)));
  }
  return 0;
}

}  // namespace

std::optional<PortOwner> FindPortOwner(std::uint16_t port) {
  std::set<std::string> inodes;
  AddListening("/proc/net/tcp", port, inodes);
  AddListening("/proc/net/tcp6", port, inodes);
  if (inodes.empty()) return std::nullopt;
  std::error_code error;
  for (fs::directory_iterator each("/proc", error), end; !error && each != end;
       each.increment(error)) {
    const std::string name = each->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!HasSocket(each->path(), inodes)) continue;
    return PortOwner{static_cast<pid_t>(std::stol(name)), ProgramOf(name)};
  }
  return std::nullopt;
}

std::optional<pid_t> FindRunningDaemon(const PortOwner& owner) {
  const std::string own = NameOf(ProgramOf("self"));
  if (owner.program.empty() || NameOf(owner.program) != own) return std::nullopt;
  const pid_t parent = ParentOf(owner.pid);
  return NameOf(ProgramOf(std::to_string(parent))) == own ? parent : owner.pid;
}

}  // namespace phub::server
