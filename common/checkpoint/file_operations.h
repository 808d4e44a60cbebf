// The system calls with which saved state changes a folder, behind an interface, so that tests can
// make each of them fail, or be the last that a process makes. Stateless; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"

namespace phub::checkpoint {

// Every call returns 0 or an errno.
class FileOperations {
 public:
  virtual ~FileOperations() = default;
  // A new file of this name; EEXIST if there is one.
  virtual int CreateFile(int folder, const std::string& name, Descriptor& file);
  // Makes the file so long and reserves the room on the disk, where the file system can.
  virtual int Reserve(int file, std::uint64_t bytes);
  virtual int WriteAt(int file, std::span<const std::byte> bytes, std::uint64_t offset);
  virtual int ReadAt(int file, std::span<std::byte> bytes, std::uint64_t offset);
  virtual int Sync(int file_or_folder);
  virtual int Rename(int folder, const std::string& from, const std::string& to);
  virtual int Remove(int folder, const std::string& name);

  static FileOperations& System();
};

// What ReadAt returns where the file ends before the bytes do: no errno has this value.
inline constexpr int kEndOfFile = -1;

// "<path>: cannot <what>: No space left on device", with the status code that fits the errno.
absl::Status FileError(std::string_view path, std::string_view what, int error);

absl::StatusOr<Descriptor> OpenFolder(const std::string& path);
// A plain file, never through a symbolic link, never waiting; NotFound if there is none.
absl::StatusOr<Descriptor> OpenFile(int folder, const std::string& folder_path,
                                    const std::string& name);
absl::StatusOr<std::uint64_t> FileBytes(int file, std::string_view path);
// The whole of a small file.
absl::StatusOr<std::string> ReadFile(int folder, const std::string& folder_path,
                                     const std::string& name, std::uint64_t bytes_max);

}  // namespace phub::checkpoint
