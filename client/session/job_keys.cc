// Adding keys: what callers ask for is checked, the daemon places it, the engine gets the layout.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "client/session/job_state.h"
#include "client/session/optimizers.h"

namespace phub::client {
namespace {

constexpr std::size_t kNameBytesMax = 255;
constexpr std::uint64_t kElementBytes = sizeof(float);

Status Invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

// The element count of a key: of its tensors, if it is a bundle.
Result<std::uint64_t> CountElements(const KeySpec& spec, std::uint64_t count_max) {
  std::uint64_t sum = 0;
  for (const std::uint64_t count : spec.tensors) {
    if (count == 0) return Invalid(fmt::format("key {} has a tensor of 0 elements", spec.name));
    if (count > count_max - sum)
      return Invalid(fmt::format("key {} is larger than {} elements", spec.name, count_max));
    sum += count;
  }
  if (spec.tensors.empty()) sum = spec.element_count;
  if (sum == 0) return Invalid(fmt::format("key {} has 0 elements", spec.name));
  if (sum > count_max)
    return Invalid(fmt::format("key {} is larger than {} elements", spec.name, count_max));
  if (spec.element_count != 0 && spec.element_count != sum)
    return Invalid(fmt::format("key {} has {} elements, its tensors have {}", spec.name,
                               spec.element_count, sum));
  return sum;
}

Status TakeMemory(const KeySpec& spec, const char* what, std::span<float> given,
                  MappedMemory& owned, std::span<float>& memory, std::uint64_t element_count) {
  if (!given.empty() && given.size() != element_count)
    return Invalid(fmt::format("key {} has {} elements, its {} have {}", spec.name, element_count,
                               what, given.size()));
  memory = given;
  if (!given.empty()) return Status();
  const std::uint64_t bytes = element_count * kElementBytes;
  owned = MappedMemory::Allocate(bytes, MappedMemory::Backing::kOnTouch);
  if (!owned)
    return Status(
        StatusCode::kResourceExhausted,
        fmt::format("{} bytes for the {} of key {} cannot be had", bytes, what, spec.name));
  memory = {reinterpret_cast<float*>(owned.data()), element_count};
  return Status();
}

Result<KeyDefinition> CheckSpec(const KeySpec& spec, std::uint64_t count_max) {
  if (spec.name.empty() || spec.name.size() > kNameBytesMax)
    return Invalid(
        fmt::format("key name '{}': 1 to {} bytes are allowed", spec.name, kNameBytesMax));
  if (spec.type != ElementType::kF32)
    return Status(StatusCode::kUnimplemented,
                  fmt::format("key {}: this version knows element type f32 only", spec.name));
  Result<std::uint64_t> count = CountElements(spec, count_max);
  if (!count.ok()) return count.status();
  KeyDefinition key;
  key.name = spec.name;
  key.element_count = *count;
  key.optimizer = spec.optimizer;
  key.hyper_parameters = HyperParametersOf(spec.optimizer);
  if (Status status = CheckHyperParameters(spec.name, key.hyper_parameters); !status.ok())
    return status;
  key.priority = spec.options.priority.value_or(0);
  key.tensors = spec.tensors;
  if (key.tensors.empty()) key.tensors.push_back(*count);
  Status status = TakeMemory(spec, "gradients", spec.options.gradients, key.owned_gradients,
                             key.gradients, *count);
  if (status.ok())
    status = TakeMemory(spec, "parameters", spec.options.parameters, key.owned_parameters,
                        key.parameters, *count);
  if (!status.ok()) return status;
  return key;
}

v1::Operation OperationOf(const KeySpec& spec) {
  switch (spec.options.operation) {
    case Operation::kSum: return v1::OPERATION_SUM;
    case Operation::kMean: return v1::OPERATION_MEAN;
    case Operation::kDefault: break;
  }
  return std::holds_alternative<None>(spec.optimizer) ? v1::OPERATION_SUM : v1::OPERATION_MEAN;
}

}  // namespace

Result<std::vector<KeyDefinition>> JobState::CheckSpecs(std::span<const KeySpec> specs) const {
  // What the lanes together can number; what the daemon has memory for is its own affair.
  const std::uint64_t count_max = std::uint64_t{kChunksPerShardMax} * layout_->lane_count() *
                                  joined_.chunk_bytes() / kElementBytes;
  if (specs.size() > kKeysPerJobMax - layout_->key_count())
    return Invalid(fmt::format("job {} would have more than {} keys", name(), kKeysPerJobMax));
  std::set<std::string_view> names;
  {
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<KeyState>& key : keys_) names.insert(key->definition.name);
  }
  std::vector<KeyDefinition> definitions;
  definitions.reserve(specs.size());
  for (const KeySpec& spec : specs) {
    if (!names.insert(spec.name).second)
      return Status(StatusCode::kAlreadyExists,
                    fmt::format("job {} has a key {} already", name(), spec.name));
    Result<KeyDefinition> definition = CheckSpec(spec, count_max);
    if (!definition.ok()) return definition.status();
    definitions.push_back(*std::move(definition));
  }
  return definitions;
}

v1::AddKeysRequest JobState::MakeRequest(const std::vector<KeyDefinition>& keys,
                                         std::span<const KeySpec> specs) const {
  v1::AddKeysRequest request;
  request.set_session_id(joined_.session_id());
  request.set_batch(next_batch_);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    v1::KeySpec& key = *request.add_keys();
    key.set_name(keys[i].name);
    key.set_element_count(keys[i].element_count);
    key.set_type(v1::ELEMENT_TYPE_F32);
    key.set_operation(OperationOf(specs[i]));
    key.set_optimizer(OptimizerKindOf(keys[i].optimizer));
    v1::HyperParameters& values = *key.mutable_hyper_parameters();
    values.set_learning_rate(keys[i].hyper_parameters.learning_rate);
    values.set_momentum(keys[i].hyper_parameters.momentum);
    values.set_dampening(keys[i].hyper_parameters.dampening);
    values.set_weight_decay(keys[i].hyper_parameters.weight_decay);
  }
  return request;
}

Result<std::vector<std::shared_ptr<KeyState>>> JobState::AddKeys(std::span<const KeySpec> specs) {
  const std::lock_guard calls(calls_mutex_);
  if (Status verdict = status(); !verdict.ok()) return verdict;
  if (specs.empty()) return std::vector<std::shared_ptr<KeyState>>();
  Result<std::vector<KeyDefinition>> definitions = CheckSpecs(specs);
  if (!definitions.ok()) return definitions.status();
  const v1::AddKeysRequest request = MakeRequest(*definitions, specs);
  auto response = Await<v1::AddKeysResponse>(
      [&](auto done) { channel_->AddKeys(request, call_timeout_ns(), std::move(done)); });
  if (!response.ok()) return FromCall("AddKeys", response.status());
  ++next_batch_;
  auto keys = Enter(*std::move(definitions), *response);
  // The daemon has them, this rank cannot: the job cannot go on.
  if (!keys.ok()) Fail(keys.status());
  return keys;
}

Result<std::vector<std::shared_ptr<KeyState>>> JobState::Enter(
    std::vector<KeyDefinition> definitions, const v1::AddKeysResponse& response) {
  if (static_cast<std::size_t>(response.placements_size()) != definitions.size())
    return Status(StatusCode::kInternal,
                  fmt::format("daemon {} placed {} of {} keys", settings_.daemon.ToString(),
                              response.placements_size(), definitions.size()));
  std::vector<KeyPlacementView> views;
  for (std::size_t i = 0; i < definitions.size(); ++i) {
    const v1::KeyPlacement& placement = response.placements(static_cast<int>(i));
    views.push_back({.name = definitions[i].name,
                     .key = KeyIndex{placement.key_index()},
                     .bytes = definitions[i].element_count * kElementBytes,
                     .chunk_cores = {placement.chunk_cores().data(),
                                     static_cast<std::size_t>(placement.chunk_cores_size())}});
  }
  absl::StatusOr<std::vector<KeyLayout>> layouts = layout_->AddKeys(views);
  if (!layouts.ok())
    return Status(StatusCode::kInternal, fmt::format("daemon {}: {}", settings_.daemon.ToString(),
                                                     std::string(layouts.status().message())));
  auto batch = std::make_unique<KeyBatch>();
  std::vector<std::shared_ptr<KeyState>> keys;
  for (std::size_t i = 0; i < definitions.size(); ++i) {
    keys.push_back(
        std::make_shared<KeyState>(shared_from_this(), views[i].key, std::move(definitions[i])));
    batch->keys.push_back({.layout = std::move((*layouts)[i]),
                           .priority = keys[i]->definition.priority,
                           .hyper_parameters = keys[i]->definition.hyper_parameters,
                           .listener = keys[i].get()});
  }
  {
    const std::lock_guard lock(mutex_);
    keys_.insert(keys_.end(), keys.begin(), keys.end());
  }
  batches_.push_back(std::move(batch));
  Submit({.kind = Command::Kind::kAddKeys, .batch = batches_.back().get()});
  return keys;
}

}  // namespace phub::client
