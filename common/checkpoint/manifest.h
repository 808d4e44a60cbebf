// The manifest of a saved state, DIR/manifest.json: the one file whose replacement makes a new
// state the current one. It names the data file and what its bytes must be, and ends with a
// checksum of its own, over its meaning and not its layout: spaces may differ, nothing else.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/description.h"

namespace phub::checkpoint {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr std::size_t kManifestBytesMax = 256u << 20;  // some 200 bytes for each tensor

struct TensorChecksum {
  std::string name;
  std::string sha256;

  friend bool operator==(const TensorChecksum&, const TensorChecksum&) = default;
};

struct Manifest {
  CheckpointDescription description;  // without its keys: they are in the data file
  std::string data_file;
  std::uint64_t data_bytes = 0;  // of the whole file
  std::string data_sha256;
  std::vector<TensorChecksum> tensors;  // in the order of their places
  // The data file that this one took the place of, "" if none: deleted, but for a crash.
  std::string replaces;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// "state-<iteration>-<8 hexadecimal digits>.safetensors". Only files of such names are ever opened
// or deleted on a manifest's word.
std::string DataFileName(std::uint64_t iteration, std::uint32_t number);
bool IsDataFileName(std::string_view name);

std::string ManifestToJson(const Manifest& manifest);
absl::StatusOr<Manifest> ParseManifest(std::string_view json);

}  // namespace phub::checkpoint
