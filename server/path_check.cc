#include "server/path_check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "common/base/descriptor.h"
#include "common/base/errno_text.h"
#include "common/base/secret_file.h"
#include "server/tenant/sqlite_store.h"
#include "server/tenant/store_check.h"
#include "server/tenant/token_key.h"

namespace phub::server {
namespace {

absl::Status Bad(const std::string& path, std::string_view what) {
  return absl::FailedPreconditionError(fmt::format("{} {}", path, what));
}

absl::Status BadAccess(const std::string& path, int error) {
  return absl::FailedPreconditionError(fmt::format("{}: {}", path, ErrnoText(error)));
}

std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::string FolderOfPath(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

enum class PathState { kAbsent, kThere };

// Whether something has this name, perhaps a link that leads nowhere. Fails if the name is not
// possible, such as one that is too long.
absl::Status FindName(const std::string& path, PathState& state) {
  struct stat facts {};
  state = PathState::kThere;
  if (lstat(path.c_str(), &facts) == 0) return absl::OkStatus();
  state = PathState::kAbsent;
  return errno == ENOENT ? absl::OkStatus() : BadAccess(path, errno);
}

// Another process than `running` holds SQLite's lock, as phubd does while it runs. in_use: the lock
// is that of `running`.
absl::Status CheckDatabase(const std::string& path, std::optional<pid_t> running, bool& in_use) {
  constexpr off_t kLockBegin = 0x40000000;  // the lock bytes in SQLite's file format
  constexpr off_t kLockBytes = 512;
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) {
    PathState state{};
    const absl::Status found = FindName(path, state);
    if (!found.ok() || state == PathState::kAbsent) return found;
    return CheckFolderIsWritable(FolderOfPath(path));  // a link: its target is created
  }
  const Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file) return BadAccess("cannot open " + path, errno);
  if (!S_ISREG(facts.st_mode)) return Bad(path, "is not a regular file");
  constexpr std::string_view kHeader("SQLite format 3", 16);  // with its null byte
  std::array<char, 16> header{};
  if (facts.st_size > 0 && (pread(file.get(), header.data(), header.size(), 0) != 16 ||
                            std::string_view(header.data(), header.size()) != kHeader)) {
    return Bad(path, "is not a database");
  }
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kLockBegin;
  lock.l_len = kLockBytes;
  if (fcntl(file.get(), F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return absl::OkStatus();
  in_use = running.has_value() && lock.l_pid == *running;
  if (in_use) return absl::OkStatus();
  return Bad(path, fmt::format("is locked; probably another phubd (pid {}) uses this state_dir",
                               lock.l_pid));
}

// The process that listens on the socket; nothing if none does.
std::optional<pid_t> ListenerOf(const sockaddr_un& address) {
  const Descriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return std::nullopt;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

}  // namespace

absl::Status CheckFolderIsWritable(const std::string& folder) {
  struct stat facts {};
  if (stat(folder.c_str(), &facts) != 0) return BadAccess(folder, errno);
  if (!S_ISDIR(facts.st_mode)) return Bad(folder, "is not a directory");
  const std::string probe = fmt::format("{}/.phubd-check-{}", folder, getpid());
  if (mkdir(probe.c_str(), 0700) != 0) {
    return Bad(folder, fmt::format("is not writable: {}", ErrnoText(errno)));
  }
  rmdir(probe.c_str());
  return absl::OkStatus();
}

absl::Status CheckStatePath(const std::string& path, std::optional<pid_t> running) {
  PathState state{};
  const std::string folder = WithoutSlashes(path);
  if (absl::Status found = FindName(folder, state); !found.ok()) return found;
  if (state == PathState::kAbsent) return CheckFolderIsWritable(FolderOfPath(folder));
  if (absl::Status status = CheckStateDir(folder); !status.ok()) return status;
  if (absl::Status status = CheckFolderIsWritable(folder); !status.ok()) return status;
  bool in_use = false;
  if (absl::Status status = CheckDatabase(folder + "/control.db", running, in_use); !status.ok()) {
    return status;
  }
  const absl::Status key = ReadTokenKey(folder).status();
  if (!key.ok() && !absl::IsNotFound(key)) return key;
  return in_use ? absl::OkStatus() : CheckStore(folder);
}

absl::Status CheckSocketPath(const std::string& path, std::optional<pid_t> running) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::FailedPreconditionError(
        fmt::format("the path is longer than {} bytes", sizeof address.sun_path - 1));
  }
  path.copy(address.sun_path, path.size());
  if (path.ends_with('/')) return Bad(path, "exists and is not a socket, but a directory");
  // phubd creates the socket's folder, but not the folders around it.
  const std::string folder = FolderOfPath(path);
  PathState state{};
  if (absl::Status found = FindName(folder, state); !found.ok()) return found;
  if (state == PathState::kAbsent) return CheckFolderIsWritable(FolderOfPath(folder));
  struct stat facts {};
  if (lstat(path.c_str(), &facts) == 0) {
    if (!S_ISSOCK(facts.st_mode)) {
      return absl::FailedPreconditionError("the path exists and is not a socket");
    }
    const std::optional<pid_t> listener = ListenerOf(address);
    if (listener.has_value() && listener != running) {
      return absl::FailedPreconditionError(
          fmt::format("another phubd is using it (pid {})", *listener));
    }
  } else if (errno != ENOENT) {
    return BadAccess(path, errno);
  }
  return CheckFolderIsWritable(folder);
}

absl::Status CheckFilePath(const std::string& path) {
  struct stat facts {};
  if (path.ends_with('/') || (lstat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode))) {
    return Bad(path, "is a directory");
  }
  PathState state{};
  const std::string aside = fmt::format("{}.{}", path, getpid());
  if (absl::Status found = FindName(aside, state); !found.ok()) return found;
  return CheckFolderIsWritable(FolderOfPath(path));
}

}  // namespace phub::server
