// The checksums of a data file, read once from its first byte to its last. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/file_operations.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"

namespace phub::checkpoint {

struct DataChecksums {
  std::string file;                     // of all bytes
  std::vector<TensorChecksum> tensors;  // in the order of their places
};

// REQUIRES: the tensors cover the bytes from `data_start` to the end of the file.
absl::StatusOr<DataChecksums> ChecksumsOf(FileOperations& operations, int file,
                                          std::string_view path, std::uint64_t data_start,
                                          const std::vector<PlacedTensor>& tensors);

}  // namespace phub::checkpoint
