// The checksums of a data file, read once from its first byte to its last. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/state/file_operations.h"
#include "common/state/manifest.h"
#include "common/state/safetensors.h"

namespace phub::state {

struct DataChecksums {
  std::string file;                     // of all bytes
  std::vector<TensorChecksum> tensors;  // in the order of their places
};

// REQUIRES: the tensors cover the bytes from `data_start` to the end of the file.
absl::StatusOr<DataChecksums> ChecksumsOf(FileOperations& operations, int file,
                                          std::string_view path, std::uint64_t data_start,
                                          const std::vector<PlacedTensor>& tensors);

}  // namespace phub::state
