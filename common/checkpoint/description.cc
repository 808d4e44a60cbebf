#include "common/checkpoint/description.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "common/base/ids.h"
#include "common/checkpoint/strict_json.h"
#include "fmt/format.h"

namespace phub::checkpoint {
namespace {

constexpr std::string_view kOwnPrefix = "phub:";
constexpr std::string_view kMetadataName = "__metadata__";  // taken by the format
constexpr std::size_t kNameBytesMax = 255;
constexpr std::size_t kWordBytesMax = 63;
constexpr std::size_t kTensorsPerKeyMax = 16;
// File offsets are 63 bits; this leaves room for the header, and sums of two cannot wrap.
constexpr std::uint64_t kStateBytesMax = std::uint64_t{1} << 60;

bool IsWord(std::string_view word) {
  return !word.empty() && word.size() <= kWordBytesMax &&
         std::all_of(word.begin(), word.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

absl::Status CheckNumbers(const SavedKey& key) {
  const auto error = [&](std::string_view what) {
    return absl::InvalidArgumentError(fmt::format("key {}: {}", Quoted(key.name), what));
  };
  if (key.element_count == 0) return error("it has no elements");
  if (key.element_count > kStateBytesMax / 8)
    return error(fmt::format("{} elements are more than a state can hold", key.element_count));
  if (!numeric::IsWireTypeOf(key.gradient_type, key.type))
    return error(fmt::format("gradients of {} cannot travel as {}", numeric::ToString(key.type),
                             numeric::ToString(key.gradient_type)));
  if (!numeric::IsWireTypeOf(key.parameter_type, key.type))
    return error(fmt::format("parameters of {} cannot travel as {}", numeric::ToString(key.type),
                             numeric::ToString(key.parameter_type)));
  for (const auto& [name, value] : key.hyper_parameters) {
    if (!IsWord(name)) return error(fmt::format("{} is no hyper-parameter", Quoted(name)));
    if (!std::isfinite(value)) return error(fmt::format("{} is not finite", name));
  }
  return absl::OkStatus();
}

absl::Status CheckKey(const SavedKey& key) {
  if (!IsCheckpointName(key.name))
    return absl::InvalidArgumentError(
        fmt::format("key {}: a name has 1 to {} bytes of UTF-8 and no control characters",
                    Quoted(key.name), kNameBytesMax));
  const auto error = [&](std::string_view what) {
    return absl::InvalidArgumentError(fmt::format("key {}: {}", Quoted(key.name), what));
  };
  if (key.name.starts_with(kOwnPrefix) || key.name == kMetadataName)
    return error(
        fmt::format("names that begin with \"{}\", and \"{}\", have a meaning of their "
                    "own in saved state",
                    kOwnPrefix, kMetadataName));
  if (!IsWord(key.operation)) return error(Quoted(key.operation) + " is no operation");
  if (!IsWord(key.optimizer)) return error(Quoted(key.optimizer) + " is no optimizer");
  if (key.optimizer_tensors.size() > kTensorsPerKeyMax)
    return error(fmt::format("{} tensors of optimizer state", key.optimizer_tensors.size()));
  std::set<std::string_view> names;
  for (const OptimizerTensor& tensor : key.optimizer_tensors) {
    if (!IsWord(tensor.name) || !names.insert(tensor.name).second)
      return error(
          fmt::format("optimizer state {} is ill-named or named twice", Quoted(tensor.name)));
  }
  return CheckNumbers(key);
}

}  // namespace

std::string ParameterTensor(std::string_view key) { return std::string(key); }
std::string MasterTensor(std::string_view key) {
  return fmt::format("{}master/{}", kOwnPrefix, key);
}
std::string OptimizerStateTensor(std::string_view name, std::string_view key) {
  return fmt::format("{}state/{}/{}", kOwnPrefix, name, key);
}

std::vector<TensorDescription> TensorsOf(const SavedKey& key) {
  std::vector<TensorDescription> tensors;
  if (!key.initialized) return tensors;
  tensors.push_back({ParameterTensor(key.name), key.parameter_type, key.element_count});
  if (key.parameter_type != key.type)
    tensors.push_back({MasterTensor(key.name), key.type, key.element_count});
  for (const OptimizerTensor& tensor : key.optimizer_tensors)
    tensors.push_back(
        {OptimizerStateTensor(tensor.name, key.name), tensor.type, key.element_count});
  return tensors;
}

std::vector<TensorDescription> TensorsOf(const CheckpointDescription& description) {
  std::vector<TensorDescription> tensors;
  for (const SavedKey& key : description.keys) {
    for (TensorDescription& tensor : TensorsOf(key)) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

bool IsCheckpointName(std::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax && IsUtf8(name) &&
         std::all_of(name.begin(), name.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return byte >= 0x20 && byte != 0x7f;
         });
}

absl::Status CheckDescription(const CheckpointDescription& description) {
  if (!IsCheckpointName(description.job))
    return absl::InvalidArgumentError(
        fmt::format("{} is no name of a job", Quoted(description.job)));
  if (description.world_size == 0 || description.world_size > kRanksMax)
    return absl::InvalidArgumentError(
        fmt::format("a job has 1 to {} workers, not {}", kRanksMax, description.world_size));
  if (!IsCheckpointName(description.phub_version))
    return absl::InvalidArgumentError(
        fmt::format("{} is no version of phub", Quoted(description.phub_version)));
  for (const std::string& daemon : description.daemons) {
    if (!IsCheckpointName(daemon))
      return absl::InvalidArgumentError(fmt::format("{} is no name of a daemon", Quoted(daemon)));
  }
  if (description.keys.size() > kKeysPerJobMax)
    return absl::InvalidArgumentError(
        fmt::format("{} keys; a job has at most {}", description.keys.size(), kKeysPerJobMax));
  std::set<std::string_view> names;
  std::uint64_t bytes = 0;
  for (const SavedKey& key : description.keys) {
    if (absl::Status status = CheckKey(key); !status.ok()) return status;
    if (!names.insert(key.name).second)
      return absl::InvalidArgumentError(fmt::format("key {} comes twice", Quoted(key.name)));
    for (const TensorDescription& tensor : TensorsOf(key)) {
      if (tensor.bytes() > kStateBytesMax - bytes)
        return absl::InvalidArgumentError(fmt::format(
            "key {}: the state would be larger than {} bytes", Quoted(key.name), kStateBytesMax));
      bytes += tensor.bytes();
    }
  }
  return absl::OkStatus();
}

}  // namespace phub::checkpoint
