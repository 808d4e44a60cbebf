// Computes the checksums of a data file in one sequential read. Any thread.
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
  std::string file;                     // covers the whole file
  std::vector<TensorChecksum> tensors;  // by offset in the file
};

// REQUIRES: the tensors cover the bytes from `data_start` to the end of the file.
absl::StatusOr<DataChecksums> ChecksumsOf(FileOperations& operations, int file,
                                          std::string_view path, std::uint64_t data_start,
                                          const std::vector<PlacedTensor>& tensors);

}  // namespace phub::checkpoint
