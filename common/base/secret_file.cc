#include "common/base/secret_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/base/descriptor.h"

namespace phub {
namespace {

constexpr std::size_t kPublicFileBytesMax = 64 << 20;  // a device such as /dev/zero has no end

absl::Status FromErrno(std::string_view what, const std::string& path, int error) {
  const std::string message = fmt::format("cannot {} {}: {}", what, path, std::strerror(error));
  switch (error) {
    case ENOENT: return absl::NotFoundError(message);
    case EEXIST: return absl::AlreadyExistsError(message);
    case EACCES:
    case EPERM: return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT: return absl::ResourceExhaustedError(message);
    default: return absl::FailedPreconditionError(message);
  }
}

std::string FolderOf(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status SyncFolderOf(const std::string& path) {
  const Descriptor folder(open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || fsync(folder.get()) != 0) return FromErrno("sync the folder of", path, errno);
  return absl::OkStatus();
}

bool WriteAll(int fd, std::string_view contents) {
  while (!contents.empty()) {
    const ssize_t written = write(fd, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    contents.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

absl::Status WriteAside(const std::string& aside, std::string_view contents, mode_t mode) {
  const Descriptor file(open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file) return FromErrno("write", aside, errno);
  // The process's umask may have removed permissions from a public file.
  if (fchmod(file.get(), mode) != 0 || !WriteAll(file.get(), contents) || fsync(file.get()) != 0) {
    return FromErrno("write", aside, errno);
  }
  return absl::OkStatus();
}

// The rule of PostgreSQL and others: only the owner has access, or the file belongs to root, which
// has given one group the right to read it.
bool IsSafe(const struct stat& facts) {
  return (facts.st_mode & 077) == 0 || (facts.st_uid == 0 && (facts.st_mode & 037) == 0);
}

// What helps: a file of another user, and one of a Kubernetes volume, cannot be changed here.
std::string Advice(const std::string& path, const struct stat& facts) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(realpath(path.c_str(), nullptr),
                                                             &std::free);
  // Kubernetes keeps the files of a volume in a folder such as "..2026_11_25_10_00_00.1234".
  if (resolved != nullptr && std::string_view(resolved.get()).find("/..2") != std::string::npos) {
    return "in the pod's specification set defaultMode: 0440 for the secret's volume, and fsGroup "
           "to the group of the process";
  }
  if (facts.st_uid != geteuid()) {
    return fmt::format(
        "it belongs to uid {}: let it belong to root with mode 0440 and a group of "
        "this process, or to this user with mode 0600 (Docker: uid, gid and mode "
        "of the secret)",
        facts.st_uid);
  }
  return fmt::format("run: chmod 600 {}", path);
}

}  // namespace

absl::StatusOr<std::string> ReadSecretFile(const std::string& path, std::size_t bytes_max) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return FromErrno("read", path, errno);
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) return FromErrno("read", path, errno);
  if (!S_ISREG(facts.st_mode)) {
    return absl::FailedPreconditionError(fmt::format("{} is not a regular file", path));
  }
  if (!IsSafe(facts)) {
    return absl::FailedPreconditionError(
        fmt::format("{} holds a secret but users other than its owner have access to it (mode "
                    "{:04o}); {}",
                    path, static_cast<unsigned>(facts.st_mode & 07777), Advice(path, facts)));
  }
  std::string contents(bytes_max + 1, '\0');
  std::size_t size = 0;
  while (size < contents.size()) {
    const ssize_t got = read(file.get(), contents.data() + size, contents.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FromErrno("read", path, errno);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > bytes_max) {
    return absl::FailedPreconditionError(fmt::format(
        "{} is larger than {} bytes, the limit for such a file; check the path", path, bytes_max));
  }
  contents.resize(size);
  return contents;
}

absl::StatusOr<std::string> ReadPublicFile(const std::string& path) {
  const auto bad = [&](std::string_view what) {
    return absl::FailedPreconditionError(
        fmt::format("cannot read {}: {}; check the path and its permissions", path, what));
  };
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return bad(std::strerror(errno));
  std::string text;
  std::array<char, 4096> block;
  for (;;) {
    const ssize_t got = read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return bad(std::strerror(errno));  // a directory, for example
    if (got == 0) break;
    text.append(block.data(), static_cast<std::size_t>(got));
    if (text.size() > kPublicFileBytesMax) return bad("it is too large");
  }
  if (text.empty()) return absl::FailedPreconditionError(fmt::format("{} is empty", path));
  return text;
}

absl::Status WriteFileDurably(const std::string& path, std::string_view contents, mode_t mode,
                              bool replace) {
  const std::string aside = fmt::format("{}.{}", path, getpid());
  unlink(aside.c_str());  // left by a killed process with the same pid
  absl::Status status = WriteAside(aside, contents, mode);
  if (status.ok()) {
    const bool placed =
        replace ? rename(aside.c_str(), path.c_str()) == 0 : link(aside.c_str(), path.c_str()) == 0;
    if (!placed) status = FromErrno("write", path, errno);
  }
  unlink(aside.c_str());
  if (!status.ok()) return status;
  return SyncFolderOf(path);
}

absl::Status RemoveFileDurably(const std::string& path) {
  if (unlink(path.c_str()) == 0) return SyncFolderOf(path);
  return errno == ENOENT ? absl::OkStatus() : FromErrno("remove", path, errno);
}

}  // namespace phub
