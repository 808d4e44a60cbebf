// Reads a checkpoint that CheckpointWriter saved. It returns data only after all checksums match.
// Errors for damaged and foreign files name the file, the place and the reason.
//
// The loading code owns it. Any thread: nothing changes after Open(). The checkpoint stays readable
// if a newer one replaces it. The reader does not detect a file that is overwritten in place after
// the check: do not edit checkpoints while they are loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "common/checkpoint/description.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"

namespace phub::checkpoint {

class CheckpointReader {
 public:
  enum class Check {
    kEverything,  // Open() verifies all checksums
    kStructure,   // only sizes, manifest and header, to list; call Verify() before Read()
  };
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const std::string& directory,
                                                                Check check = Check::kEverything);
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const CheckpointDescription& description() const { return description_; }
  const Manifest& manifest() const { return manifest_; }

  // Reads the whole file and compares checksums. The error names the damaged tensor.
  absl::Status Verify();
  // Reads whole elements, starting at `element_offset`. REQUIRES: verified.
  absl::Status Read(std::string_view tensor, std::uint64_t element_offset,
                    std::span<std::byte> bytes) const;

 private:
  explicit CheckpointReader(std::string directory) : directory_(std::move(directory)) {}
  absl::Status OpenFiles();
  absl::Status ReadHeader();
  absl::Status CheckAgainstManifest() const;
  std::string PathOf(const std::string& name) const { return directory_ + "/" + name; }

  std::string directory_;
  Manifest manifest_;
  Descriptor data_;
  std::string data_path_;
  std::uint64_t data_start_ = 0;
  SafetensorsHeader header_;
  CheckpointDescription description_;
  std::map<std::string, std::size_t, std::less<>> index_of_;  // into header_.tensors
  bool verified_ = false;
};

}  // namespace phub::checkpoint
