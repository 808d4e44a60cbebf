// The system calls that change a checkpoint folder, behind an interface: tests can make each call
// fail, or end the process after it. Stateless; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"

namespace phub::checkpoint {

// Every function returns 0 or an errno.
class FileOperations {
 public:
  virtual ~FileOperations() = default;
  // Creates a file; EEXIST if it exists already.
  virtual int CreateFile(int folder, const std::string& name, Descriptor& file);
  // Sets the file's size, and reserves the disk space if the file system supports that.
  virtual int Reserve(int file, std::uint64_t bytes);
  virtual int WriteAt(int file, std::span<const std::byte> bytes, std::uint64_t offset);
  virtual int ReadAt(int file, std::span<std::byte> bytes, std::uint64_t offset);
  virtual int Sync(int file_or_folder);
  virtual int Rename(int folder, const std::string& from, const std::string& to);
  virtual int Remove(int folder, const std::string& name);

  static FileOperations& System();
};

// ReadAt's result if the file ends too early. No errno has this value.
inline constexpr int kEndOfFile = -1;

// "<path>: cannot <what>: No space left on device", with the status code for the errno.
absl::Status FileError(std::string_view path, std::string_view what, int error);

absl::StatusOr<Descriptor> OpenFolder(const std::string& path);
// Opens a regular file for reading. Never follows a symbolic link and never blocks. NotFound if the
// file does not exist.
absl::StatusOr<Descriptor> OpenFile(int folder, const std::string& folder_path,
                                    const std::string& name);
absl::StatusOr<std::uint64_t> FileBytes(int file, std::string_view path);
// Reads a small file completely.
absl::StatusOr<std::string> ReadFile(int folder, const std::string& folder_path,
                                     const std::string& name, std::uint64_t bytes_max);

}  // namespace phub::checkpoint
