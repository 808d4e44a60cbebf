#include "common/checkpoint/file_operations.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/status/status.h"
#include "common/base/errno_text.h"
#include "common/base/shortage.h"
#include "common/base/status_text.h"
#include "fmt/format.h"

namespace phub::checkpoint {
namespace {

// Repeats a system call while signals interrupt it. Returns 0, or its errno if it returns -1.
template <typename Call>
int ErrnoOf(Call call) {
  while (call() < 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

std::string PathOf(const std::string& folder, const std::string& name) {
  return folder + "/" + name;
}

}  // namespace

int FileOperations::CreateFile(int folder, const std::string& name, Descriptor& file) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int opened = -1;
  const int error = ErrnoOf([&] { return opened = openat(folder, name.c_str(), kFlags, 0666); });
  if (error == 0) file = Descriptor(opened);
  return error;
}

int FileOperations::Reserve(int file, std::uint64_t bytes) {
  const auto length = static_cast<off_t>(bytes);
  const int error = ErrnoOf([&] { return fallocate(file, 0, 0, length); });
  if (error != EOPNOTSUPP && error != ENOSYS) return error;
  return ErrnoOf([&] { return ftruncate(file, length); });
}

int FileOperations::WriteAt(int file, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    ssize_t written = 0;
    const int error = ErrnoOf([&] {
      return written = pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    });
    if (error != 0) return error;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return 0;
}

int FileOperations::ReadAt(int file, std::span<std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    ssize_t got = 0;
    const int error = ErrnoOf(
        [&] { return got = pread(file, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (error != 0) return error;
    if (got == 0) return kEndOfFile;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return 0;
}

int FileOperations::Sync(int file_or_folder) {
  return ErrnoOf([&] { return fsync(file_or_folder); });
}

int FileOperations::Rename(int folder, const std::string& from, const std::string& to) {
  return ErrnoOf([&] { return renameat(folder, from.c_str(), folder, to.c_str()); });
}

int FileOperations::Remove(int folder, const std::string& name) {
  return ErrnoOf([&] { return unlinkat(folder, name.c_str(), 0); });
}

FileOperations& FileOperations::System() {
  static FileOperations operations;
  return operations;
}

absl::Status FileError(std::string_view path, std::string_view what, int error) {
  if (error == kEndOfFile)
    return absl::DataLossError(fmt::format("{}: cannot {}: the file is truncated", path, what));
  return absl::Status(absl::ErrnoToStatusCode(error),
                      fmt::format("{}: cannot {}: {}", path, what,
                                  error == EMFILE || error == ENFILE ? DescriptorErrorText(error)
                                                                     : ErrnoText(error)));
}

absl::StatusOr<Descriptor> OpenFolder(const std::string& path) {
  int opened = -1;
  const int error =
      ErrnoOf([&] { return opened = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (error != 0) return FileError(path, "open the checkpoint folder", error);
  return Descriptor(opened);
}

absl::StatusOr<Descriptor> OpenFile(int folder, const std::string& folder_path,
                                    const std::string& name) {
  const std::string path = PathOf(folder_path, name);
  int opened = -1;
  const int error = ErrnoOf([&] {
    return opened = openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  });
  if (error != 0) return FileError(path, "open the file", error);
  Descriptor file(opened);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return FileError(path, "stat the file", errno);
  if (!S_ISREG(status.st_mode))
    return absl::FailedPreconditionError(fmt::format("{}: this is not a regular file", path));
  return file;
}

absl::StatusOr<std::uint64_t> FileBytes(int file, std::string_view path) {
  struct stat status {};
  if (fstat(file, &status) != 0) return FileError(path, "stat the file", errno);
  return static_cast<std::uint64_t>(status.st_size);
}

absl::StatusOr<std::string> ReadFile(int folder, const std::string& folder_path,
                                     const std::string& name, std::uint64_t bytes_max) {
  const std::string path = PathOf(folder_path, name);
  const absl::StatusOr<Descriptor> file = OpenFile(folder, folder_path, name);
  if (!file.ok()) return file.status();
  const absl::StatusOr<std::uint64_t> bytes = FileBytes(file->get(), path);
  if (!bytes.ok()) return bytes.status();
  if (*bytes > bytes_max)
    return absl::DataLossError(
        fmt::format("{}: the file has {} bytes; at most {} are allowed", path, *bytes, bytes_max));
  std::string text(*bytes, '\0');
  const int error =
      FileOperations::System().ReadAt(file->get(), std::as_writable_bytes(std::span(text)), 0);
  if (error != 0) return FileError(path, "read the file", error);
  return text;
}

}  // namespace phub::checkpoint
