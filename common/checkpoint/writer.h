// Saves one state into a folder:
//   manifest.json                              the current state; replaced last, in one step
//   state-<iteration>-<8 digits>.safetensors   its data
// At every instant, and after a crash or power loss at any, the folder holds the old state or the
// new one, whole. Other files in it are left alone.
//
// Pieces of tensors come in any order, each element exactly once. After any error the writer only
// repeats it: destroy it. Destroying one that has not committed removes what it wrote.
//
// Owned by whoever saves. Write() may be called from several threads at once; Commit() and the
// destructor when no Write() is running.
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
  // Reserves the room on the disk, so that a full disk is known before anything is fetched. The
  // tensors that must come are TensorsOf(description). The operations outlive the writer.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      const std::string& directory, CheckpointDescription description,
      FileOperations& operations = FileOperations::System());
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Whole elements, little-endian, from `element_offset` on.
  absl::Status Write(std::string_view tensor, std::uint64_t element_offset,
                     std::span<const std::byte> bytes);
  // OK when the new state is the current one and survives a power loss.
  absl::Status Commit();

  const CheckpointDescription& description() const { return description_; }

 private:
  // How far the commit came: what the destructor has to remove.
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

  std::mutex mutex_;  // over the two below
  std::vector<ReceivedRanges> received_;
  absl::Status failed_;
};

}  // namespace phub::checkpoint
