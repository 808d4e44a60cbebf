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
constexpr std::string_view kMetadataName = "__metadata__";  // reserved by safetensors
constexpr std::size_t kNameBytesMax = 255;
constexpr std::size_t kWordBytesMax = 63;
constexpr std::size_t kTensorsPerKeyMax = 16;
// File offsets have 63 bits. This limit leaves room for the header, and the sum of two sizes cannot
// overflow.
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
    return error(fmt::format("it has {} elements; a checkpoint holds at most {} per key",
                             key.element_count, kStateBytesMax / 8));
  if (!numeric::IsWireTypeOf(key.gradient_type, key.type))
    return error(fmt::format("gradients of a key of type {} cannot be sent as {}",
                             numeric::ToString(key.type), numeric::ToString(key.gradient_type)));
  if (!numeric::IsWireTypeOf(key.parameter_type, key.type))
    return error(fmt::format("parameters of a key of type {} cannot be sent as {}",
                             numeric::ToString(key.type), numeric::ToString(key.parameter_type)));
  for (const auto& [name, value] : key.hyper_parameters) {
    if (!IsWord(name))
      return error(fmt::format("{} is not a valid hyper-parameter name", Quoted(name)));
    if (!std::isfinite(value)) return error(fmt::format("hyper-parameter {} is not finite", name));
  }
  return absl::OkStatus();
}

absl::Status CheckKey(const SavedKey& key) {
  if (!IsCheckpointName(key.name))
    return absl::InvalidArgumentError(
        fmt::format("key {}: the name must have 1 to {} bytes of UTF-8 without control characters",
                    Quoted(key.name), kNameBytesMax));
  const auto error = [&](std::string_view what) {
    return absl::InvalidArgumentError(fmt::format("key {}: {}", Quoted(key.name), what));
  };
  if (IsReservedName(key.name))
    return error(
        fmt::format("checkpoints reserve the name \"{}\" and names that start with \"{}\"; rename "
                    "the key",
                    kMetadataName, kOwnPrefix));
  if (!IsWord(key.operation))
    return error(Quoted(key.operation) + " is not a valid name of an operation");
  if (!IsWord(key.optimizer))
    return error(Quoted(key.optimizer) + " is not a valid name of an optimizer");
  if (key.optimizer_tensors.size() > kTensorsPerKeyMax)
    return error(fmt::format("the optimizer has {} state tensors; at most {} are allowed",
                             key.optimizer_tensors.size(), kTensorsPerKeyMax));
  std::set<std::string_view> names;
  for (const OptimizerTensor& tensor : key.optimizer_tensors) {
    if (!IsWord(tensor.name) || !names.insert(tensor.name).second)
      return error(
          fmt::format("the name {} of an optimizer state tensor is invalid or occurs twice",
                      Quoted(tensor.name)));
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
        fmt::format("{} is not a valid job name", Quoted(description.job)));
  if (description.world_size == 0 || description.world_size > kRanksMax)
    return absl::InvalidArgumentError(
        fmt::format("a job must have 1 to {} workers, but the checkpoint says {}", kRanksMax,
                    description.world_size));
  if (!IsCheckpointName(description.phub_version))
    return absl::InvalidArgumentError(
        fmt::format("{} is not a valid phub version", Quoted(description.phub_version)));
  for (const std::string& daemon : description.daemons) {
    if (!IsCheckpointName(daemon))
      return absl::InvalidArgumentError(
          fmt::format("{} is not a valid name of a daemon", Quoted(daemon)));
  }
  if (description.keys.size() > kKeysPerJobMax)
    return absl::InvalidArgumentError(fmt::format("the job has {} keys; at most {} are allowed",
                                                  description.keys.size(), kKeysPerJobMax));
  std::set<std::string_view> names;
  std::uint64_t bytes = 0;
  for (const SavedKey& key : description.keys) {
    if (absl::Status status = CheckKey(key); !status.ok()) return status;
    if (!names.insert(key.name).second)
      return absl::InvalidArgumentError(fmt::format("two keys are named {}", Quoted(key.name)));
    for (const TensorDescription& tensor : TensorsOf(key)) {
      if (tensor.bytes() > kStateBytesMax - bytes)
        return absl::InvalidArgumentError(fmt::format("with key {} the checkpoint exceeds {} bytes",
                                                      Quoted(key.name), kStateBytesMax));
      bytes += tensor.bytes();
    }
  }
  return absl::OkStatus();
}

bool IsReservedName(std::string_view key_name) {
  return key_name.starts_with(kOwnPrefix) || key_name == kMetadataName;
}

}  // namespace phub::checkpoint
