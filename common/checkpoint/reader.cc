#include "common/checkpoint/reader.h"

#include <array>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_text.h"
#include "common/checkpoint/data_checksums.h"
#include "common/checkpoint/file_operations.h"
#include "common/checkpoint/metadata.h"
#include "common/checkpoint/strict_json.h"
#include "fmt/format.h"

namespace phub::checkpoint {
namespace {

// Another process may replace the manifest and delete its data file before the reader opens the
// data file; the reader then retries.
constexpr int kOpenAttemptsMax = 8;

absl::Status Refused(std::string_view path, std::string_view why) {
  return absl::DataLossError(fmt::format("{}: {}", path, why));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    const std::string& directory, Check check) {
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader(directory));
  absl::Status status = reader->OpenFiles();
  if (status.ok()) status = reader->ReadHeader();
  if (status.ok()) status = reader->CheckAgainstManifest();
  if (status.ok() && check == Check::kEverything) status = reader->Verify();
  if (!status.ok()) return status;
  return reader;
}

absl::Status CheckpointReader::OpenFiles() {
  const absl::StatusOr<Descriptor> folder = OpenFolder(directory_);
  if (!folder.ok()) return folder.status();
  std::string text_before;
  for (int attempt = 0; attempt < kOpenAttemptsMax; ++attempt) {
    const absl::StatusOr<std::string> text =
        ReadFile(folder->get(), directory_, kManifestFile, kManifestBytesMax);
    if (absl::IsNotFound(text.status()))
      return absl::NotFoundError(fmt::format("{}: this folder is not a checkpoint: it has no {}",
                                             directory_, kManifestFile));
    if (!text.ok()) return text.status();
    absl::StatusOr<Manifest> manifest = ParseManifest(*text);
    if (!manifest.ok()) return Refused(PathOf(kManifestFile), MessageOf(manifest.status()));
    manifest_ = *std::move(manifest);
    data_path_ = PathOf(manifest_.data_file);
    absl::StatusOr<Descriptor> data = OpenFile(folder->get(), directory_, manifest_.data_file);
    if (data.ok()) {
      data_ = *std::move(data);
      return absl::OkStatus();
    }
    if (!absl::IsNotFound(data.status())) return data.status();
    if (*text == text_before) break;
    text_before = *text;
  }
  return Refused(data_path_,
                 fmt::format("{} refers to this file, but it does not exist", kManifestFile));
}

absl::Status CheckpointReader::ReadHeader() {
  FileOperations& operations = FileOperations::System();
  const absl::StatusOr<std::uint64_t> file_bytes = FileBytes(data_.get(), data_path_);
  if (!file_bytes.ok()) return file_bytes.status();
  if (*file_bytes != manifest_.data_bytes)
    return Refused(data_path_, fmt::format("the file has {} bytes, but {} were saved", *file_bytes,
                                           manifest_.data_bytes));
  std::array<std::byte, kHeaderLengthBytes> length_bytes{};
  int error = operations.ReadAt(data_.get(), length_bytes, 0);
  if (error != 0) return FileError(data_path_, "read the length of the header", error);
  const absl::StatusOr<std::uint64_t> length = DecodeHeaderLength(length_bytes, *file_bytes);
  if (!length.ok()) return Refused(data_path_, MessageOf(length.status()));
  std::string json(*length, '\0');
  error =
      operations.ReadAt(data_.get(), std::as_writable_bytes(std::span(json)), kHeaderLengthBytes);
  if (error != 0) return FileError(data_path_, "read the header", error);
  data_start_ = kHeaderLengthBytes + *length;
  absl::StatusOr<SafetensorsHeader> header = ParseHeader(json, *file_bytes - data_start_);
  if (!header.ok()) return Refused(data_path_, MessageOf(header.status()));
  header_ = *std::move(header);
  absl::StatusOr<CheckpointDescription> description = DescriptionOf(header_);
  if (!description.ok()) return Refused(data_path_, MessageOf(description.status()));
  description_ = *std::move(description);
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_of_[header_.tensors[i].name] = i;
  return absl::OkStatus();
}

absl::Status CheckpointReader::CheckAgainstManifest() const {
  CheckpointDescription summary = description_;
  summary.keys.clear();
  if (summary != manifest_.description)
    return Refused(
        data_path_,
        fmt::format("{} does not match this file: it describes job {} at iteration {}, the file "
                    "holds job {} at iteration {}",
                    kManifestFile, Quoted(manifest_.description.job),
                    manifest_.description.iteration, Quoted(summary.job), summary.iteration));
  if (manifest_.tensors.size() != header_.tensors.size())
    return Refused(data_path_,
                   fmt::format("the file holds {} tensors, but {} has checksums of {}",
                               header_.tensors.size(), kManifestFile, manifest_.tensors.size()));
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    if (header_.tensors[i].name == manifest_.tensors[i].name) continue;
    return Refused(data_path_, fmt::format("the file holds tensor {} where {} has a checksum of {}",
                                           Quoted(header_.tensors[i].name), kManifestFile,
                                           Quoted(manifest_.tensors[i].name)));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::Verify() {
  const absl::StatusOr<DataChecksums> checksums =
      ChecksumsOf(FileOperations::System(), data_.get(), data_path_, data_start_, header_.tensors);
  if (!checksums.ok()) return checksums.status();
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    if (checksums->tensors[i] == manifest_.tensors[i]) continue;
    const PlacedTensor& tensor = header_.tensors[i];
    return Refused(
        data_path_,
        fmt::format("tensor {}, bytes {} to {} of the file, is damaged: its checksum differs",
                    Quoted(tensor.name), data_start_ + tensor.begin, data_start_ + tensor.end));
  }
  if (checksums->file != manifest_.data_sha256)
    return Refused(data_path_, fmt::format("the header, the first {} bytes, is damaged: the "
                                           "checksum of the file differs",
                                           data_start_));
  verified_ = true;
  return absl::OkStatus();
}

absl::Status CheckpointReader::Read(std::string_view tensor, std::uint64_t element_offset,
                                    std::span<std::byte> bytes) const {
  PHUB_CHECK(verified_, "file={}", data_path_);
  const auto error = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        fmt::format("{}: tensor {}: {}", data_path_, Quoted(tensor), what));
  };
  const auto found = index_of_.find(tensor);
  if (found == index_of_.end()) return error("the checkpoint has no tensor of this name");
  const PlacedTensor& placed = header_.tensors[found->second];
  const std::uint64_t element_bytes = numeric::ElementBytes(placed.type);
  if (bytes.size() % element_bytes != 0)
    return error(fmt::format("{} bytes are not a whole number of {} elements", bytes.size(),
                             numeric::ToString(placed.type)));
  const std::uint64_t count = bytes.size() / element_bytes;
  if (element_offset > placed.shape[0] || count > placed.shape[0] - element_offset)
    return error(fmt::format("{} elements from offset {} exceed the tensor's {}", count,
                             element_offset, placed.shape[0]));
  const int failed = FileOperations::System().ReadAt(
      data_.get(), bytes, data_start_ + placed.begin + element_offset * element_bytes);
  return failed == 0 ? absl::OkStatus() : FileError(data_path_, "read the file", failed);
}

}  // namespace phub::checkpoint
