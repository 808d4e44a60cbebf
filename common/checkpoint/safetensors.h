// The safetensors format: what its header may say, strictly.
//
//   | length of header, 8 bytes little-endian | header: JSON, padded with spaces | data |
//
// The header names each tensor's type, shape and place in the data, and strings of metadata. The
// places cover the data exactly: no overlap, no hole, nothing after the last. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/element_type.h"
#include "common/checkpoint/description.h"

namespace phub::checkpoint {

inline constexpr std::size_t kHeaderLengthBytes = 8;
inline constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit
inline constexpr std::size_t kShapeRankMax = 8;

struct PlacedTensor {
  std::string name;
  numeric::ElementType type = numeric::ElementType::kF32;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t end = 0;

  friend bool operator==(const PlacedTensor&, const PlacedTensor&) = default;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<PlacedTensor> tensors;  // in the order of their places

  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

// Places for tensors of one dimension, the widest types first: so each begins at a multiple of its
// element's size, which readers that map the file rely on.
std::vector<PlacedTensor> PlaceTensors(const std::vector<TensorDescription>& tensors);

// All bytes before the data: a multiple of eight.
std::string EncodeHeader(const SafetensorsHeader& header);

// The length of the JSON, if a file of so many bytes can have it.
absl::StatusOr<std::uint64_t> DecodeHeaderLength(
    std::span<const std::byte, kHeaderLengthBytes> bytes, std::uint64_t file_bytes);

// REQUIRES: `json` is what lies between the length and `data_bytes` of data.
absl::StatusOr<SafetensorsHeader> ParseHeader(std::string_view json, std::uint64_t data_bytes);

}  // namespace phub::checkpoint
