#include "common/checkpoint/data_checksums.h"

#include <algorithm>

#include "common/checkpoint/checksum.h"

namespace phub::checkpoint {
namespace {

constexpr std::uint64_t kBufferBytesMax = 1 << 20;  // large enough to hide the cost of system calls

}  // namespace

absl::StatusOr<DataChecksums> ChecksumsOf(FileOperations& operations, int file,
                                          std::string_view path, std::uint64_t data_start,
                                          const std::vector<PlacedTensor>& tensors) {
  const std::uint64_t data_bytes = tensors.empty() ? 0 : tensors.back().end;
  std::vector<std::byte> buffer(std::min(kBufferBytesMax, data_start + data_bytes));
  Sha256 whole;
  Sha256 part;
  const auto read = [&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t at = begin; at < end;) {
      const std::span<std::byte> bytes(buffer.data(),
                                       std::min<std::uint64_t>(buffer.size(), end - at));
      const int error = operations.ReadAt(file, bytes, at);
      if (error != 0) return FileError(path, "read the file", error);
      whole.Update(bytes);
      part.Update(bytes);
      at += bytes.size();
    }
    return absl::OkStatus();
  };

  absl::Status status = read(0, data_start);
  if (!status.ok()) return status;
  part.Finish();  // discards the header's: only the checksum of the whole file covers the header
  DataChecksums checksums;
  for (const PlacedTensor& tensor : tensors) {
    status = read(data_start + tensor.begin, data_start + tensor.end);
    if (!status.ok()) return status;
    checksums.tensors.push_back({tensor.name, part.Finish()});
  }
  checksums.file = whole.Finish();
  return checksums;
}

}  // namespace phub::checkpoint
