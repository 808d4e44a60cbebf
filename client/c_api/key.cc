// phub_key_*, phub_job_add_keys, phub_job_remove_keys, and the functions that start rounds.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "client/c_api/structs.h"
#include "common/base/chunk_map.h"

namespace phub::c_api {
namespace {

constexpr std::size_t kKeySpecFirst = offsetof(phub_key_spec, movement);

phub_key_spec DefaultKeySpec() {
  phub_key_spec spec{};
  spec.type = PHUB_F32;
  return spec;
}

phub_elements ToC(const Elements& elements) {
  return {elements.data, elements.count, static_cast<std::int32_t>(elements.type), 0};
}
phub_const_elements ToC(const ConstElements& elements) {
  return {elements.data, elements.count, static_cast<std::int32_t>(elements.type), 0};
}
Status CheckType(const char* name, std::int32_t type, bool may_be_unset) {
  if (type == 0 && may_be_unset) return Status();
  if (TypeOf(type) != ElementType{}) return Status();
  return Invalid(fmt::format("{} is {}; it must be PHUB_F32 to PHUB_U8 (1 to {})", name, type,
                             static_cast<int>(PHUB_U8)));
}

Status CheckKeySpec(const phub_key_spec& spec) {
  if (spec.name == nullptr) return NullArgument("phub_job_add_keys", "name");
  if (spec.tensors == nullptr && spec.tensor_count != 0)
    return NullArgument("phub_job_add_keys", "tensors");
  for (const Status& status :
       {CheckType("type", spec.type, false), CheckType("gradient_type", spec.gradient_type, true),
        CheckType("parameter_type", spec.parameter_type, true),
        CheckChoice("operation", spec.operation, PHUB_BITWISE_XOR),
        CheckChoice("movement", spec.movement, PHUB_GATHER_TO_ONE),
        CheckChoice("compression", spec.compression, PHUB_COMPRESSION_RANDOMK),
        CheckChoice("error_feedback", spec.error_feedback, PHUB_FEEDBACK_OFF)})
    if (!status.ok()) return Invalid(fmt::format("key {}: {}", spec.name, status.message()));
  return Status();
}

// The parts of a key in the memory of each rank. A root that does not exist is refused later.
KeyParts PartsOf(const phub_key_spec& spec, const Membership& members) {
  const auto movement = static_cast<KeyMovement>(spec.movement);
  if (members.ranks.empty()) return {movement, members.count, Rank{spec.root}};
  const auto root = std::ranges::find(members.ranks, spec.root) - members.ranks.begin();
  return {movement, members.count, Rank{static_cast<std::uint32_t>(root)}};
}

Status ReadKeySpec(const void* given, const Membership& members, KeySpec& spec) {
  phub_key_spec values = DefaultKeySpec();
  if (Status status = Read(given, "phub_key_spec", kKeySpecFirst, values); !status.ok())
    return status;
  if (Status status = CheckKeySpec(values); !status.ok()) return status;
  spec.name = values.name;
  spec.type = TypeOf(values.type);
  spec.element_count = values.element_count;
  if (values.tensors != nullptr)
    spec.tensors.assign(values.tensors, values.tensors + values.tensor_count);
  std::uint64_t count = spec.tensors.empty() ? values.element_count : 0;
  for (const std::uint64_t tensor : spec.tensors) count += tensor;
  KeyOptions& options = spec.options;
  options.operation = static_cast<Operation>(values.operation);
  if (values.gradient_type != 0) options.gradient_type = TypeOf(values.gradient_type);
  if (values.parameter_type != 0) options.parameter_type = TypeOf(values.parameter_type);
  if (values.has_priority != 0) options.priority = values.priority;
  if (Status status = ReadPriorityClass(values.priority_class, options.priority_class);
      !status.ok())
    return Invalid(fmt::format("key {}: {}", spec.name, status.message()));
  options.copy = values.copy != 0;
  options.movement = static_cast<Movement>(values.movement);
  options.root = values.root;
  options.collective = values.collective != 0;
  options.pooled = values.pooled != 0;
  options.compression.kind = static_cast<Compression::Kind>(values.compression);
  options.compression.kept = values.kept;
  if (values.error_feedback != PHUB_FEEDBACK_DEFAULT)
    options.compression.error_feedback = values.error_feedback == PHUB_FEEDBACK_ON;
  const KeyParts parts = PartsOf(values, members);
  const Rank rank{members.index};
  const std::uint64_t part = count / parts.largest();
  if (values.gradients != nullptr)
    options.gradients = {values.gradients, part * parts.SentBy(rank),
                         options.gradient_type.value_or(spec.type)};
  if (values.parameters != nullptr)
    options.parameters = {values.parameters, part * parts.ReceivedBy(rank),
                          options.parameter_type.value_or(spec.type)};
  return ReadOptimizer(values.optimizer, spec.optimizer);
}

}  // namespace

Status ReadKeySpecs(const phub_key_spec* given, std::size_t count, const Membership& members,
                    std::vector<KeySpec>& specs) {
  specs.resize(count);
  const auto* at = reinterpret_cast<const unsigned char*>(given);
  for (KeySpec& spec : specs) {
    if (Status status = ReadKeySpec(at, members, spec); !status.ok()) return status;
    at += given->struct_size;
  }
  return Status();
}

Status Deliver(const Result<std::vector<Key>>& added, phub_key** keys) {
  if (!added.ok()) return added.status();
  std::vector<std::unique_ptr<phub_key>> objects;
  for (const Key& key : *added) objects.push_back(std::make_unique<phub_key>(phub_key{key}));
  for (std::size_t i = 0; i < objects.size(); ++i) keys[i] = objects[i].release();
  return Status();
}

}  // namespace phub::c_api

using namespace phub::c_api;  // NOLINT: this file has functions of phub.h only
using phub::Status;

void phub_key_spec_init(phub_key_spec* spec, size_t struct_size) {
  Initialize(spec, struct_size, DefaultKeySpec());
}

phub_result phub_job_add_keys(phub_job* job, const phub_key_spec* specs, size_t count,
                              phub_key** keys, phub_error** error) {
  return Run(job, error, [&] {
    if (job == nullptr) return NullArgument("phub_job_add_keys", "job");
    if (count == 0) return Status();
    if (specs == nullptr) return NullArgument("phub_job_add_keys", "specs");
    if (keys == nullptr) return NullArgument("phub_job_add_keys", "keys");
    std::vector<phub::KeySpec> given;
    const Membership all{.count = job->job.world_size(), .index = job->job.rank()};
    if (Status status = ReadKeySpecs(specs, count, all, given); !status.ok()) return status;
    return Deliver(job->job.AddKeys(given), keys);
  });
}

phub_result phub_job_remove_keys(phub_job* job, phub_key* const* keys, size_t count,
                                 phub_error** error) {
  return Run(job, error, [&] {
    if (job == nullptr) return NullArgument("phub_job_remove_keys", "job");
    if (count > 0 && keys == nullptr) return NullArgument("phub_job_remove_keys", "keys");
    std::vector<phub::Key> given;
    for (size_t i = 0; i < count; ++i) {
      if (keys[i] == nullptr) return NullArgument("phub_job_remove_keys", "a key");
      given.push_back(keys[i]->key);
    }
    return job->job.RemoveKeys(given);
  });
}

void phub_key_free(phub_key* key) { delete key; }

const char* phub_key_name(const phub_key* key) {
  return key == nullptr ? "" : key->key.name().c_str();
}
uint64_t phub_key_element_count(const phub_key* key) {
  return key == nullptr ? 0 : key->key.element_count();
}
int32_t phub_key_type(const phub_key* key) {
  return key == nullptr ? 0 : static_cast<std::int32_t>(key->key.type());
}
uint64_t phub_key_iteration(const phub_key* key) {
  return key == nullptr ? 0 : key->key.iteration();
}
phub_elements phub_key_gradients(const phub_key* key) {
  return key == nullptr ? phub_elements{} : ToC(key->key.gradients());
}
phub_const_elements phub_key_parameters(const phub_key* key) {
  return key == nullptr ? phub_const_elements{} : ToC(key->key.parameters());
}
phub_elements phub_key_mutable_parameters(const phub_key* key) {
  return key == nullptr ? phub_elements{} : ToC(key->key.mutable_parameters());
}
size_t phub_key_tensor_count(const phub_key* key) {
  return key == nullptr ? 0 : key->key.tensor_count();
}

phub_result phub_key_tensor(const phub_key* key, size_t index, phub_elements* gradients,
                            phub_const_elements* parameters, phub_error** error) {
  return Run(key, error, [&] {
    if (key == nullptr) return NullArgument("phub_key_tensor", "key");
    if (index >= key->key.tensor_count())
      return Status(phub::StatusCode::kOutOfRange,
                    fmt::format("phub_key_tensor: index is {}, but key {} has {} tensors", index,
                                key->key.name(), key->key.tensor_count()));
    const phub::Tensor tensor = key->key.tensor(index);
    if (gradients != nullptr) *gradients = ToC(tensor.gradients);
    if (parameters != nullptr) *parameters = ToC(tensor.parameters);
    return Status();
  });
}

phub_result phub_job_initialize(phub_job* job, phub_key* key, const phub_const_elements* values,
                                phub_error** error) {
  return Run(key, error, [&] {
    if (job == nullptr) return NullArgument("phub_job_initialize", "job");
    if (key == nullptr) return NullArgument("phub_job_initialize", "key");
    return job->job.Initialize(key->key,
                               values == nullptr ? phub::ConstElements{} : FromC(*values));
  });
}

phub_result phub_key_set_hyper_parameters(phub_key* key, const phub_optimizer* values,
                                          phub_error** error) {
  return Run(key, error, [&] {
    if (key == nullptr) return NullArgument("phub_key_set_hyper_parameters", "key");
    if (values == nullptr) return NullArgument("phub_key_set_hyper_parameters", "values");
    phub::Optimizer optimizer;
    if (Status status = ReadOptimizer(values, optimizer); !status.ok()) return status;
    return key->key.SetHyperParameters(optimizer);
  });
}

phub_result phub_key_push_pull(phub_key* key, phub_handle** handle, phub_error** error) {
  return Run(key, error, [&] {
    if (key == nullptr) return NullArgument("phub_key_push_pull", "key");
    if (handle == nullptr) return NullArgument("phub_key_push_pull", "handle");
    return Deliver(key->key.PushPull(), handle);
  });
}

phub_result phub_key_push_pull_with(phub_key* key, const phub_const_elements* gradients,
                                    const phub_elements* parameters, phub_handle** handle,
                                    phub_error** error) {
  return Run(key, error, [&] {
    if (key == nullptr) return NullArgument("phub_key_push_pull_with", "key");
    if (gradients == nullptr) return NullArgument("phub_key_push_pull_with", "gradients");
    if (handle == nullptr) return NullArgument("phub_key_push_pull_with", "handle");
    return Deliver(parameters == nullptr ? key->key.Push(FromC(*gradients))
                                         : key->key.PushPull(FromC(*gradients), FromC(*parameters)),
                   handle);
  });
}

phub_result phub_key_push_pull_to_skip(phub_key* key, phub_handle** handle, phub_error** error) {
  return Run(key, error, [&] {
    if (key == nullptr) return NullArgument("phub_key_push_pull_to_skip", "key");
    if (handle == nullptr) return NullArgument("phub_key_push_pull_to_skip", "handle");
    return Deliver(key->key.PushPullToSkip(), handle);
  });
}

phub_result phub_key_all_reduce(phub_key* key, const phub_const_elements* gradients,
                                const phub_elements* parameters, int32_t operation,
                                uint32_t sequence, phub_handle** handle, phub_error** error) {
  return Run(key, error, [&] {
    if (key == nullptr) return NullArgument("phub_key_all_reduce", "key");
    if (gradients == nullptr) return NullArgument("phub_key_all_reduce", "gradients");
    if (parameters == nullptr) return NullArgument("phub_key_all_reduce", "parameters");
    if (handle == nullptr) return NullArgument("phub_key_all_reduce", "handle");
    if (Status status = CheckChoice("operation", operation, PHUB_BITWISE_XOR); !status.ok())
      return status;
    return Deliver(key->key.AllReduce(FromC(*gradients), FromC(*parameters),
                                      static_cast<phub::Operation>(operation), sequence),
                   handle);
  });
}

phub_result phub_key_pull(const phub_key* key, phub_handle** handle, phub_error** error) {
  return Run(key, error, [&] {
    if (key == nullptr) return NullArgument("phub_key_pull", "key");
    if (handle == nullptr) return NullArgument("phub_key_pull", "handle");
    return Deliver(key->key.Pull(), handle);
  });
}

phub_result phub_job_broadcast(phub_job* job, phub_key* key, uint32_t root,
                               const phub_const_elements* values, phub_handle** handle,
                               phub_error** error) {
  return Run(key, error, [&] {
    if (job == nullptr) return NullArgument("phub_job_broadcast", "job");
    if (key == nullptr) return NullArgument("phub_job_broadcast", "key");
    if (handle == nullptr) return NullArgument("phub_job_broadcast", "handle");
    return Deliver(job->job.Broadcast(key->key, root,
                                      values == nullptr ? phub::ConstElements{} : FromC(*values)),
                   handle);
  });
}
