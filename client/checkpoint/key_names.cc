#include "client/checkpoint/key_names.h"

#include <fmt/format.h>

#include <utility>

#include "common/optimizer/message_fields.h"
#include "common/optimizer/optimizer_table.h"

namespace phub::client {
namespace {

using numeric::ElementType;

ElementType TypeOr(v1::ElementType type, ElementType otherwise) {
  return type == v1::ELEMENT_TYPE_UNSPECIFIED ? otherwise : static_cast<ElementType>(type);
}

std::size_t OptimizerTensorIndex(v1::StateTensor tensor) {
  return static_cast<std::size_t>(tensor - v1::STATE_TENSOR_OPTIMIZER_0);
}

}  // namespace

const char* OperationName(v1::Operation operation) {
  switch (operation) {
    case v1::OPERATION_SUM: return "sum";
    case v1::OPERATION_MEAN: return "mean";
    case v1::OPERATION_MIN: return "min";
    case v1::OPERATION_MAX: return "max";
    case v1::OPERATION_PRODUCT: return "product";
    default: return "unknown";
  }
}

const char* OptimizerName(v1::OptimizerKind optimizer) {
  const optimizer::Descriptor* const row = optimizer::FindDescriptor(optimizer);
  return row == nullptr ? "unknown" : row->name;
}

std::map<std::string, double> HyperParameterMap(const v1::HyperParameters& message) {
  std::map<std::string, double> map;
  const auto values = optimizer::FromMessage(message);
  for (const optimizer::Field& field : optimizer::kFields) map[field.name] = values.*field.value;
  return map;
}

v1::HyperParameters HyperParametersOf(const std::map<std::string, double>& map) {
  optimizer::HyperParameters values;
  for (const optimizer::Field& field : optimizer::kFields) {
    const auto found = map.find(field.name);
    if (found != map.end()) values.*field.value = found->second;
  }
  v1::HyperParameters message;
  optimizer::ToMessage(values, message);
  return message;
}

checkpoint::SavedKey DescribeKey(const v1::KeySpec& spec) {
  checkpoint::SavedKey key;
  key.name = spec.name();
  key.element_count = spec.element_count();
  key.type = TypeOr(spec.type(), ElementType::kF32);
  key.gradient_type = TypeOr(spec.gradient_type(), key.type);
  key.parameter_type = TypeOr(spec.parameter_type(), key.type);
  key.operation = OperationName(spec.operation());
  key.optimizer = OptimizerName(spec.optimizer());
  key.hyper_parameters = HyperParameterMap(spec.hyper_parameters());
  if (const auto* const row = optimizer::FindDescriptor(spec.optimizer())) {
    for (const char* name : row->states)
      key.optimizer_tensors.push_back({name, numeric::AccumulationType(key.type)});
  }
  return key;
}

std::vector<v1::StateTensor> StateTensors(const checkpoint::SavedKey& key) {
  std::vector<v1::StateTensor> tensors = {v1::STATE_TENSOR_PARAMETERS};
  if (key.type != key.parameter_type) tensors.push_back(v1::STATE_TENSOR_MASTERS);
  for (std::size_t i = 0; i < key.optimizer_tensors.size(); ++i)
    tensors.push_back(static_cast<v1::StateTensor>(v1::STATE_TENSOR_OPTIMIZER_0 + i));
  return tensors;
}

std::string TensorName(const checkpoint::SavedKey& key, v1::StateTensor tensor) {
  switch (tensor) {
    case v1::STATE_TENSOR_PARAMETERS: return checkpoint::ParameterTensor(key.name);
    case v1::STATE_TENSOR_MASTERS:
      return key.type != key.parameter_type ? checkpoint::MasterTensor(key.name) : std::string();
    case v1::STATE_TENSOR_OPTIMIZER_0:
    case v1::STATE_TENSOR_OPTIMIZER_1: {
      const std::size_t index = OptimizerTensorIndex(tensor);
      if (index >= key.optimizer_tensors.size()) return {};
      return checkpoint::OptimizerStateTensor(key.optimizer_tensors[index].name, key.name);
    }
    default: return {};
  }
}

std::uint32_t TensorElementBytes(const checkpoint::SavedKey& key, v1::StateTensor tensor) {
  switch (tensor) {
    case v1::STATE_TENSOR_PARAMETERS: return numeric::ElementBytes(key.parameter_type);
    case v1::STATE_TENSOR_MASTERS: return numeric::ElementBytes(key.type);
    default: return numeric::ElementBytes(key.optimizer_tensors[OptimizerTensorIndex(tensor)].type);
  }
}

absl::Status CheckSameKey(const checkpoint::SavedKey& saved, const checkpoint::SavedKey& running) {
  const auto differ = [&](const char* what, const std::string& theirs, const std::string& ours) {
    return absl::InvalidArgumentError(fmt::format(
        "key {}: the checkpoint has {} {}, the job has {}", running.name, what, theirs, ours));
  };
  const auto types = [&](const char* what, ElementType theirs, ElementType ours) {
    return differ(what, numeric::ToString(theirs), numeric::ToString(ours));
  };
  if (saved.element_count != running.element_count) {
    return differ("element count", std::to_string(saved.element_count),
                  std::to_string(running.element_count));
  }
  if (saved.type != running.type) return types("type", saved.type, running.type);
  if (saved.parameter_type != running.parameter_type) {
    return types("parameter type", saved.parameter_type, running.parameter_type);
  }
  if (saved.operation != running.operation) {
    return differ("operation", saved.operation, running.operation);
  }
  if (saved.optimizer != running.optimizer ||
      saved.optimizer_tensors != running.optimizer_tensors) {
    return differ("optimizer", saved.optimizer, running.optimizer);
  }
  return absl::OkStatus();
}

}  // namespace phub::client
