#include "common/checkpoint/writer.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/status_text.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/metadata.h"
#include "common/checkpoint/strict_json.h"
#include "fmt/format.h"

namespace phub::checkpoint {
namespace {

// The random part of a name has 32 bits: this many collisions in a row must have another cause.
constexpr int kNameAttemptsMax = 16;

// Needs no descriptor. A file that cannot be looked at does not count: creating it gives the
// reason.
bool Exists(const CheckpointFolder& folder, const std::string& name) {
  struct stat facts {};
  return fstatat(folder.descriptor.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0;
}

}  // namespace

CheckpointWriter::CheckpointWriter(CheckpointFolder folder, CheckpointDescription description,
                                   FileOperations& operations)
    : folder_(std::move(folder)),
      description_(std::move(description)),
      operations_(operations),
      header_(HeaderOf(description_)),
      received_(header_.tensors.size()) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_of_[header_.tensors[i].name] = i;
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(
    const std::string& directory, CheckpointDescription description, FileOperations& operations) {
  if (absl::Status status = CheckDescription(description); !status.ok())
    return absl::InvalidArgumentError(
        fmt::format("{}: cannot save the checkpoint: {}", directory, MessageOf(status)));
  absl::StatusOr<CheckpointFolder> folder = OpenForSaving(directory, operations);
  if (!folder.ok()) return folder.status();
  // Not make_unique: the constructor is private.
  std::unique_ptr<CheckpointWriter> writer(
      new CheckpointWriter(*std::move(folder), std::move(description), operations));
  if (absl::Status status = writer->CreateDataFile(); !status.ok()) return status;
  return writer;
}

absl::Status CheckpointWriter::CreateDataFile() {
  const std::string header = EncodeHeader(header_);
  if (header.size() - kHeaderLengthBytes > kHeaderBytesMax)
    return absl::InvalidArgumentError(
        fmt::format("{}: cannot save the checkpoint: its header has {} bytes; safetensors allows "
                    "at most {}",
                    folder_.path, header.size(), kHeaderBytesMax));
  data_start_ = header.size();
  SystemRandom random;
  int error = EEXIST;
  for (int i = 0; i < kNameAttemptsMax && error == EEXIST; ++i) {
    data_file_ =
        DataFileName(description_.iteration, static_cast<std::uint32_t>(random.Next() >> 32));
    if (Exists(folder_, data_file_)) continue;
    error = operations_.CreateFile(folder_.descriptor.get(), data_file_ + kDataTemporaryEnd, data_);
  }
  const std::string path = PathOf(data_file_ + kDataTemporaryEnd);
  if (error != 0) return FileError(path, "create the file", error);
  const std::uint64_t data_bytes = header_.tensors.empty() ? 0 : header_.tensors.back().end;
  error = operations_.Reserve(data_.get(), data_start_ + data_bytes);
  if (error != 0)
    return FileError(path, fmt::format("reserve {} bytes", data_start_ + data_bytes), error);
  error = operations_.WriteAt(data_.get(), std::as_bytes(std::span(header)), 0);
  return error == 0 ? absl::OkStatus() : FileError(path, "write the file", error);
}

CheckpointWriter::~CheckpointWriter() {
  const auto remove = [&](const std::string& name) {
    // A destructor cannot report an error. The next writer removes files that remain.
    (void)operations_.Remove(folder_.descriptor.get(), name);
  };
  // From kReplacing on the new manifest may be in place, even if the rename reported an error.
  if (stage_ == Stage::kCommitted || stage_ == Stage::kReplacing || !data_) return;
  remove(data_file_ + kDataTemporaryEnd);
  if (stage_ != Stage::kRenaming) return;
  remove(data_file_);
  remove(data_file_ + kManifestTemporaryEnd);
}

absl::Status CheckpointWriter::Fail(absl::Status status) {
  const std::lock_guard lock(mutex_);
  if (failed_.ok()) failed_ = status;
  return status;
}

absl::Status CheckpointWriter::Accept(std::string_view tensor, std::uint64_t element_offset,
                                      std::size_t bytes, std::uint64_t& file_offset) {
  const auto error = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor {}: {}", PathOf(data_file_), Quoted(tensor), what));
  };
  const auto found = index_of_.find(tensor);
  if (found == index_of_.end()) return error("the checkpoint has no tensor of this name");
  const PlacedTensor& placed = header_.tensors[found->second];
  const std::uint64_t element_bytes = numeric::ElementBytes(placed.type);
  const std::uint64_t element_count = placed.shape[0];
  if (bytes % element_bytes != 0)
    return error(fmt::format("{} bytes are not a whole number of {} elements", bytes,
                             numeric::ToString(placed.type)));
  const std::uint64_t count = bytes / element_bytes;
  if (element_offset > element_count || count > element_count - element_offset)
    return error(fmt::format("{} elements from offset {} exceed the tensor's {}", count,
                             element_offset, element_count));
  const ElementRange range{element_offset, element_offset + count};
  const std::lock_guard lock(mutex_);
  if (!failed_.ok()) return failed_;
  if (const auto before = received_[found->second].Add(range))
    return error(
        fmt::format("elements {} to {} overlap elements {} to {}, which were written "
                    "before",
                    range.begin, range.end, before->begin, before->end));
  file_offset = data_start_ + placed.begin + element_offset * element_bytes;
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Write(std::string_view tensor, std::uint64_t element_offset,
                                     std::span<const std::byte> bytes) {
  std::uint64_t file_offset = 0;
  absl::Status status = Accept(tensor, element_offset, bytes.size(), file_offset);
  if (!status.ok()) return Fail(std::move(status));
  const int error = operations_.WriteAt(data_.get(), bytes, file_offset);
  if (error == 0) return absl::OkStatus();
  return Fail(FileError(PathOf(data_file_ + kDataTemporaryEnd), "write the file", error));
}

absl::Status CheckpointWriter::CheckComplete() const {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    const PlacedTensor& tensor = header_.tensors[i];
    const auto gap = received_[i].FirstGap(tensor.shape[0]);
    if (!gap) continue;
    return absl::FailedPreconditionError(
        fmt::format("{}: tensor {}: elements {} to {} of {} are missing", PathOf(data_file_),
                    Quoted(tensor.name), gap->begin, gap->end, tensor.shape[0]));
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Commit() {
  if (!failed_.ok()) return failed_;
  if (stage_ != Stage::kWriting)
    return absl::FailedPreconditionError(PathOf(data_file_) +
                                         ": the checkpoint is already committed");
  absl::Status status = CheckComplete();
  if (!status.ok()) return Fail(std::move(status));
  const std::string path = PathOf(data_file_ + kDataTemporaryEnd);
  const absl::StatusOr<DataChecksums> checksums =
      ChecksumsOf(operations_, data_.get(), path, data_start_, header_.tensors);
  if (!checksums.ok()) return Fail(checksums.status());
  const int error = operations_.Sync(data_.get());
  if (error != 0) return Fail(FileError(path, "sync the file", error));
  stage_ = Stage::kRenaming;
  status = WriteManifest(*checksums);
  if (status.ok()) status = Publish();
  return status.ok() ? status : Fail(std::move(status));
}

absl::Status CheckpointWriter::WriteManifest(const DataChecksums& checksums) {
  Manifest manifest;
  manifest.description = description_;
  manifest.description.keys.clear();
  manifest.data_file = data_file_;
  manifest.data_bytes = data_start_ + (header_.tensors.empty() ? 0 : header_.tensors.back().end);
  manifest.data_sha256 = checksums.file;
  manifest.tensors = checksums.tensors;
  if (folder_.current) manifest.replaces = folder_.current->data_file;
  const std::string json = ManifestToJson(manifest);
  const std::string name = data_file_ + kManifestTemporaryEnd;
  if (json.size() > kManifestBytesMax)
    return absl::InvalidArgumentError(
        fmt::format("{}: the manifest has {} bytes; at most {} are allowed", PathOf(name),
                    json.size(), kManifestBytesMax));
  Descriptor file;
  int error = operations_.CreateFile(folder_.descriptor.get(), name, file);
  if (error != 0) return FileError(PathOf(name), "create the file", error);
  error = operations_.WriteAt(file.get(), std::as_bytes(std::span(json)), 0);
  if (error != 0) return FileError(PathOf(name), "write the file", error);
  error = operations_.Sync(file.get());
  return error == 0 ? absl::OkStatus() : FileError(PathOf(name), "sync the file", error);
}

// Each step is synced to disk before the next one: a rename must not reach the disk before the data
// that it makes current.
absl::Status CheckpointWriter::Publish() {
  const int folder = folder_.descriptor.get();
  int error = operations_.Sync(folder);  // the temporary manifest's name, which marks stale data
  if (error != 0) return FileError(folder_.path, "sync the folder", error);
  error = operations_.Rename(folder, data_file_ + kDataTemporaryEnd, data_file_);
  if (error != 0)
    return FileError(PathOf(data_file_), "rename the temporary file to this name", error);
  error = operations_.Sync(folder);
  if (error != 0) return FileError(folder_.path, "sync the folder", error);

  stage_ = Stage::kReplacing;
  error = operations_.Rename(folder, data_file_ + kManifestTemporaryEnd, kManifestFile);
  if (error != 0) return FileError(PathOf(kManifestFile), "replace the file", error);
  error = operations_.Sync(folder);
  if (error != 0)
    return FileError(folder_.path, "sync the folder; a power loss may lose the new checkpoint",
                     error);
  stage_ = Stage::kCommitted;

  // The new checkpoint is current. If the removal fails, the next writer retries it, because the
  // manifest names the replaced file.
  if (folder_.current) (void)operations_.Remove(folder, folder_.current->data_file);
  return absl::OkStatus();
}

}  // namespace phub::checkpoint
