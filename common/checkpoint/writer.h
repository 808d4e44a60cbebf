// Saves one checkpoint into a folder:
//   manifest.json                              the current checkpoint; replaced last, atomically
//   state-<iteration>-<8 digits>.safetensors   its data
// At any time, also after a crash or power loss, the folder holds either the complete old
// checkpoint or the complete new one. The writer does not touch other files.
//
// Write the pieces of tensors in any order, each element exactly once. After an error every call
// returns that error: destroy the writer. The destructor removes the files of an uncommitted
// writer.
//
// The saving code owns it. Several threads may call Write() at once. Commit() and the destructor
// must not run concurrently with Write().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/data_checksums.h"
#include "common/checkpoint/description.h"
#include "common/checkpoint/file_operations.h"
#include "common/checkpoint/folder.h"
#include "common/checkpoint/received_ranges.h"
#include "common/checkpoint/safetensors.h"

namespace phub::checkpoint {

class CheckpointWriter {
 public:
  // Reserves the disk space, to detect a full disk before any data is fetched. The caller must
  // write all of TensorsOf(description). `operations` must outlive the writer.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      const std::string& directory, CheckpointDescription description,
      FileOperations& operations = FileOperations::System());
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Writes whole elements, little-endian, starting at `element_offset`.
  absl::Status Write(std::string_view tensor, std::uint64_t element_offset,
                     std::span<const std::byte> bytes);
  // OK if the new checkpoint is current and survives a power loss.
  absl::Status Commit();

  const CheckpointDescription& description() const { return description_; }

 private:
  // Progress of the commit: decides which files the destructor removes.
  enum class Stage { kWriting, kRenaming, kReplacing, kCommitted };

  CheckpointWriter(CheckpointFolder folder, CheckpointDescription description,
                   FileOperations& operations);
  absl::Status CreateDataFile();
  absl::Status Accept(std::string_view tensor, std::uint64_t element_offset, std::size_t bytes,
                      std::uint64_t& file_offset);
  absl::Status CheckComplete() const;
  absl::Status WriteManifest(const DataChecksums& checksums);
  absl::Status Publish();
  absl::Status Fail(absl::Status status);
  std::string PathOf(const std::string& name) const { return folder_.path + "/" + name; }

  CheckpointFolder folder_;
  CheckpointDescription description_;
  FileOperations& operations_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> index_of_;  // into header_.tensors
  std::uint64_t data_start_ = 0;                              // where the data begins in the file
  std::string data_file_;
  Descriptor data_;
  Stage stage_ = Stage::kWriting;

  std::mutex mutex_;
  std::vector<ReceivedRanges> received_;  // under mutex_
  absl::Status failed_;                   // under mutex_
};

}  // namespace phub::checkpoint
