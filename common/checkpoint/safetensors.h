// Reads and writes headers of the safetensors format, with strict checks.
//
//   | length of header, 8 bytes little-endian | header: JSON, padded with spaces | data |
//
// The header holds each tensor's name, type, shape and place in the data, and metadata strings. The
// tensors cover the data exactly: no overlap, no gap, no trailing bytes. Pure; any thread.
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
  std::vector<PlacedTensor> tensors;  // by begin

  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

// Places one-dimensional tensors, the widest types first. Each tensor then starts at a multiple of
// its element size, on which readers that map the file rely.
std::vector<PlacedTensor> PlaceTensors(const std::vector<TensorDescription>& tensors);

// All bytes before the data. Their number is a multiple of eight.
std::string EncodeHeader(const SafetensorsHeader& header);

// The length of the JSON. Fails if it is too large for the format or for a file of `file_bytes`.
absl::StatusOr<std::uint64_t> DecodeHeaderLength(
    std::span<const std::byte, kHeaderLengthBytes> bytes, std::uint64_t file_bytes);

// `json`: the bytes between the length and the `data_bytes` of data.
absl::StatusOr<SafetensorsHeader> ParseHeader(std::string_view json, std::uint64_t data_bytes);

}  // namespace phub::checkpoint
