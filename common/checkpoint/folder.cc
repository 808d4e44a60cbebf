#include "common/checkpoint/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status_text.h"
#include "fmt/format.h"

namespace phub::checkpoint {
namespace {

absl::Status MakeFolder(const std::string& path, FileOperations& operations) {
  if (mkdir(path.c_str(), 0777) != 0)
    return errno == EEXIST ? absl::OkStatus() : FileError(path, "create the folder", errno);
  // The folder's entry in its parent must survive a power loss, as its contents do.
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const auto folder = OpenFolder(parent.empty() ? "." : parent.string());
  if (!folder.ok()) return folder.status();
  const int error = operations.Sync(folder->get());
  return error == 0 ? absl::OkStatus() : FileError(parent.string(), "sync the folder", error);
}

// True: locked. False: the file system does not support locks (some network file systems have none
// for folders). Two concurrent writers are still safe without the lock, but may leave stale files.
absl::StatusOr<bool> Lock(const CheckpointFolder& folder) {
  while (flock(folder.descriptor.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return false;
    return absl::FailedPreconditionError(
        fmt::format("{}: another process is saving a checkpoint into this folder; retry when it "
                    "has finished, or choose another folder",
                    folder.path));
  }
  return true;
}

absl::StatusOr<std::optional<Manifest>> ReadCurrent(const CheckpointFolder& folder) {
  const absl::StatusOr<std::string> text =
      ReadFile(folder.descriptor.get(), folder.path, kManifestFile, kManifestBytesMax);
  if (absl::IsNotFound(text.status())) return std::optional<Manifest>();
  if (!text.ok()) return text.status();
  absl::StatusOr<Manifest> manifest = ParseManifest(*text);
  if (!manifest.ok())
    return absl::FailedPreconditionError(
        fmt::format("{}/{}: {}; refusing to overwrite the file: choose another folder or delete it",
                    folder.path, kManifestFile, MessageOf(manifest.status())));
  return std::optional<Manifest>(*std::move(manifest));
}

absl::StatusOr<std::vector<std::string>> NamesIn(const CheckpointFolder& folder) {
  auto again = OpenFolder(folder.path);  // reading would move the position of folder.descriptor
  if (!again.ok()) return again.status();
  DIR* const stream = fdopendir(again->get());
  if (stream == nullptr) return FileError(folder.path, "list the folder", errno);
  again->Release();
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(stream)) names.emplace_back(entry->d_name);
  const int error = errno;
  closedir(stream);
  if (error != 0) return FileError(folder.path, "list the folder", error);
  return names;
}

absl::Status RemoveLeftovers(const CheckpointFolder& folder, FileOperations& operations) {
  const std::string current = folder.current ? folder.current->data_file : "";
  const auto remove = [&](const std::string& name) {
    const int error = operations.Remove(folder.descriptor.get(), name);
    if (error == 0 || error == ENOENT) return absl::OkStatus();
    return FileError(fmt::format("{}/{}", folder.path, name), "remove the file", error);
  };
  if (folder.current && !folder.current->replaces.empty()) {
    if (absl::Status status = remove(folder.current->replaces); !status.ok()) return status;
  }
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(folder);
  if (!names.ok()) return names.status();
  for (const std::string_view name : *names) {
    for (const std::string_view end : {kManifestTemporaryEnd, kDataTemporaryEnd}) {
      if (!name.ends_with(end)) continue;
      const std::string data_file(name.substr(0, name.size() - end.size()));
      if (!IsDataFileName(data_file)) continue;
      absl::Status status;
      // Remove the data file before the temporary manifest, which marks it as stale.
      if (end == kManifestTemporaryEnd && data_file != current) status = remove(data_file);
      if (status.ok()) status = remove(std::string(name));
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckpointFolder> OpenForSaving(const std::string& path,
                                               FileOperations& operations) {
  CheckpointFolder folder;
  folder.path = path;
  while (folder.path.size() > 1 && folder.path.ends_with('/')) folder.path.pop_back();
  if (absl::Status status = MakeFolder(folder.path, operations); !status.ok()) return status;
  absl::StatusOr<Descriptor> descriptor = OpenFolder(folder.path);
  if (!descriptor.ok()) return descriptor.status();
  folder.descriptor = *std::move(descriptor);
  const absl::StatusOr<bool> locked = Lock(folder);
  if (!locked.ok()) return locked.status();
  absl::StatusOr<std::optional<Manifest>> current = ReadCurrent(folder);
  if (!current.ok()) return current.status();
  folder.current = *std::move(current);
  if (*locked) {
    if (absl::Status status = RemoveLeftovers(folder, operations); !status.ok()) return status;
  }
  return folder;
}

}  // namespace phub::checkpoint
