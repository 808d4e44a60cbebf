// The manifest of a checkpoint, DIR/manifest.json. Replacing this file makes a new checkpoint the
// current one. It holds the name, the size and the checksums of the data file, and ends with its
// own checksum. That checksum covers the values but not the whitespace. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/description.h"

namespace phub::checkpoint {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr std::size_t kManifestBytesMax = 256u << 20;  // a tensor takes about 200 bytes

struct TensorChecksum {
  std::string name;
  std::string sha256;

  friend bool operator==(const TensorChecksum&, const TensorChecksum&) = default;
};

struct Manifest {
  CheckpointDescription description;  // without the keys, which are in the data file
  std::string data_file;
  std::uint64_t data_bytes = 0;  // size of the data file
  std::string data_sha256;
  std::vector<TensorChecksum> tensors;  // by offset in the data file
  // The data file that this checkpoint replaced, or "". It still exists only after a crash.
  std::string replaces;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// "state-<iteration>-<8 hexadecimal digits>.safetensors". A manifest can only cause files with such
// names to be opened or deleted.
std::string DataFileName(std::uint64_t iteration, std::uint32_t number);
bool IsDataFileName(std::string_view name);

std::string ManifestToJson(const Manifest& manifest);
absl::StatusOr<Manifest> ParseManifest(std::string_view json);

}  // namespace phub::checkpoint
