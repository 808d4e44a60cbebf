#include "common/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/status/status.h"
#include "common/checkpoint/strict_json.h"
#include "fmt/format.h"

namespace phub::checkpoint {
namespace {

using numeric::ElementType;

constexpr const char* kMetadata = "__metadata__";

constexpr std::array<std::pair<ElementType, std::string_view>, numeric::kElementTypeMax> kTypes = {
    {{ElementType::kF32, "F32"},
     {ElementType::kF16, "F16"},
     {ElementType::kBf16, "BF16"},
     {ElementType::kF64, "F64"},
     {ElementType::kI32, "I32"},
     {ElementType::kI64, "I64"},
     {ElementType::kU8, "U8"}}};

std::string_view NameOf(ElementType type) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const auto& each) { return each.first == type; });
  return found->second;
}

std::optional<ElementType> TypeOf(std::string_view name) {
  for (const auto& [type, its_name] : kTypes) {
    if (its_name == name) return type;
  }
  return std::nullopt;
}

absl::StatusOr<std::map<std::string, std::string>> ParseMetadata(const Json& value) {
  if (!value.is_object()) return JsonError(kMetadata, "expected an object {...}");
  std::map<std::string, std::string> metadata;
  for (const auto& item : value.items()) {
    if (!item.value().is_string())
      return JsonError(kMetadata, fmt::format("{} must be a string", Quoted(item.key())));
    metadata[item.key()] = item.value().get<std::string>();
  }
  return metadata;
}

// The product of the shape and the element's size; nullopt if it exceeds 64 bits.
std::optional<std::uint64_t> BytesOf(const PlacedTensor& tensor) {
  std::uint64_t bytes = numeric::ElementBytes(tensor.type);
  for (const std::uint64_t count : tensor.shape) {
    if (__builtin_mul_overflow(bytes, count, &bytes)) return std::nullopt;
  }
  return bytes;
}

absl::StatusOr<std::vector<std::uint64_t>> ParseCounts(const Json& object, std::string_view where,
                                                       const char* field, std::size_t least,
                                                       std::size_t most) {
  const absl::StatusOr<const Json*> list = ListField(object, where, field);
  if (!list.ok()) return list.status();
  if ((*list)->size() < least || (*list)->size() > most)
    return JsonError(where, fmt::format("\"{}\" has {} numbers; {} to {} are allowed", field,
                                        (*list)->size(), least, most));
  std::vector<std::uint64_t> counts;
  for (const Json& count : **list) {
    if (!count.is_number_unsigned())
      return JsonError(where, fmt::format("\"{}\" must hold only integers >= 0", field));
    counts.push_back(count.get<std::uint64_t>());
  }
  return counts;
}

absl::StatusOr<PlacedTensor> ParseTensor(const std::string& name, const Json& value) {
  const std::string where = fmt::format("tensor {}", Quoted(name));
  absl::Status status = CheckFields(value, where, {"dtype", "shape", "data_offsets"});
  if (!status.ok()) return status;
  const absl::StatusOr<std::string> type_name = TextField(value, where, "dtype");
  if (!type_name.ok()) return type_name.status();
  const std::optional<ElementType> type = TypeOf(*type_name);
  if (!type) return JsonError(where, fmt::format("unknown dtype {}", Quoted(*type_name)));
  auto shape = ParseCounts(value, where, "shape", 0, kShapeRankMax);
  if (!shape.ok()) return shape.status();
  const auto offsets = ParseCounts(value, where, "data_offsets", 2, 2);
  if (!offsets.ok()) return offsets.status();

  PlacedTensor tensor{name, *type, *std::move(shape), (*offsets)[0], (*offsets)[1]};
  if (tensor.begin > tensor.end)
    return JsonError(where,
                     fmt::format("its end {} is before its begin {}", tensor.end, tensor.begin));
  const std::optional<std::uint64_t> bytes = BytesOf(tensor);
  if (!bytes || *bytes != tensor.end - tensor.begin)
    return JsonError(where, fmt::format("its shape and dtype do not match its {} bytes of data",
                                        tensor.end - tensor.begin));
  return tensor;
}

absl::Status CheckPlaces(const std::vector<PlacedTensor>& tensors, std::uint64_t data_bytes) {
  std::uint64_t at = 0;
  for (const PlacedTensor& tensor : tensors) {
    if (tensor.begin != at)
      return JsonError(
          fmt::format("tensor {}", Quoted(tensor.name)),
          fmt::format("begins at byte {} of the data, {} the tensor before, which ends at {}",
                      tensor.begin, tensor.begin < at ? "inside" : "leaving a gap after", at));
    at = tensor.end;
  }
  if (at != data_bytes)
    return JsonError("", fmt::format("the tensors have {} bytes, but the file has {} bytes of data",
                                     at, data_bytes));
  return absl::OkStatus();
}

}  // namespace

std::vector<PlacedTensor> PlaceTensors(const std::vector<TensorDescription>& tensors) {
  std::vector<PlacedTensor> placed;
  for (const TensorDescription& tensor : tensors)
    placed.push_back({tensor.name, tensor.type, {tensor.element_count}, 0, 0});
  std::stable_sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) {
    return numeric::ElementBytes(a.type) > numeric::ElementBytes(b.type);
  });
  std::uint64_t at = 0;
  for (PlacedTensor& tensor : placed) {
    tensor.begin = at;
    at += tensor.shape[0] * numeric::ElementBytes(tensor.type);
    tensor.end = at;
  }
  return placed;
}

std::string EncodeHeader(const SafetensorsHeader& header) {
  // Written without a Json object, which would sort the tensors by name.
  std::string json = fmt::format("{{\"{}\":{}", kMetadata, Json(header.metadata).dump());
  for (const PlacedTensor& tensor : header.tensors) {
    json += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        Json(tensor.name).dump(), NameOf(tensor.type), fmt::join(tensor.shape, ","),
                        tensor.begin, tensor.end);
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string bytes;
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i)
    bytes += static_cast<char>(std::uint64_t{json.size()} >> (8 * i));
  return bytes + json;
}

absl::StatusOr<std::uint64_t> DecodeHeaderLength(
    std::span<const std::byte, kHeaderLengthBytes> bytes, std::uint64_t file_bytes) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i)
    length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  if (length > kHeaderBytesMax)
    return JsonError("header", fmt::format("its length is {}; at most {} bytes are allowed", length,
                                           kHeaderBytesMax));
  if (file_bytes < kHeaderLengthBytes || length > file_bytes - kHeaderLengthBytes)
    return JsonError(
        "header", fmt::format("its length is {}, but the file has {} bytes", length, file_bytes));
  return length;
}

absl::StatusOr<SafetensorsHeader> ParseHeader(std::string_view json, std::uint64_t data_bytes) {
  if (!json.starts_with('{')) return JsonError("header", "the JSON does not begin with '{'");
  // Only spaces, the format's padding, may follow the object.
  if (const std::size_t last = json.find_last_not_of(' '); json[last] != '}')
    return JsonError("header", "the JSON does not end with '}' and optional spaces");
  const absl::StatusOr<Json> root = ParseStrictJson(json, kHeaderBytesMax);
  if (!root.ok())
    return JsonError("header", {root.status().message().data(), root.status().message().size()});
  SafetensorsHeader header;
  for (const auto& item : root->items()) {
    if (item.key() == kMetadata) {
      auto metadata = ParseMetadata(item.value());
      if (!metadata.ok()) return metadata.status();
      header.metadata = *std::move(metadata);
      continue;
    }
    auto tensor = ParseTensor(item.key(), item.value());
    if (!tensor.ok()) return tensor.status();
    header.tensors.push_back(*std::move(tensor));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  absl::Status status = CheckPlaces(header.tensors, data_bytes);
  if (!status.ok()) return status;
  return header;
}

}  // namespace phub::checkpoint
