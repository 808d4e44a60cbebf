#include "client/state_transfer/key_names.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace phub::client {
namespace {

using numeric::ElementType;

struct Field {
  const char* name;
  double (v1::HyperParameters::*get)() const;
  void (v1::HyperParameters::*set)(double);
};
constexpr std::array<Field, 10> kFields = {{
    {"learning_rate", &v1::HyperParameters::learning_rate, &v1::HyperParameters::set_learning_rate},
    {"weight_decay", &v1::HyperParameters::weight_decay, &v1::HyperParameters::set_weight_decay},
    {"clip_value", &v1::HyperParameters::clip_value, &v1::HyperParameters::set_clip_value},
    {"momentum", &v1::HyperParameters::momentum, &v1::HyperParameters::set_momentum},
    {"dampening", &v1::HyperParameters::dampening, &v1::HyperParameters::set_dampening},
    {"beta1", &v1::HyperParameters::beta1, &v1::HyperParameters::set_beta1},
    {"beta2", &v1::HyperParameters::beta2, &v1::HyperParameters::set_beta2},
    {"epsilon", &v1::HyperParameters::epsilon, &v1::HyperParameters::set_epsilon},
    {"learning_rate_decay", &v1::HyperParameters::learning_rate_decay,
     &v1::HyperParameters::set_learning_rate_decay},
    {"initial_accumulator", &v1::HyperParameters::initial_accumulator,
     &v1::HyperParameters::set_initial_accumulator},
}};

std::vector<const char*> OptimizerTensorNames(v1::OptimizerKind optimizer) {
  switch (optimizer) {
    case v1::OPTIMIZER_MOMENTUM:
    case v1::OPTIMIZER_NESTEROV: return {"momentum"};
    case v1::OPTIMIZER_ADAM:
    case v1::OPTIMIZER_ADAMW: return {"first_moment", "second_moment"};
    case v1::OPTIMIZER_ADAGRAD: return {"squares"};
    default: return {};
  }
}

ElementType TypeOr(v1::ElementType type, ElementType otherwise) {
  return type == v1::ELEMENT_TYPE_UNSPECIFIED ? otherwise : static_cast<ElementType>(type);
}

std::size_t OptimizerTensorIndex(v1::StateTensor tensor) {
  return tensor == v1::STATE_TENSOR_OPTIMIZER_0 ? 0 : 1;
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
  switch (optimizer) {
    case v1::OPTIMIZER_NONE: return "none";
    case v1::OPTIMIZER_SGD: return "sgd";
    case v1::OPTIMIZER_MOMENTUM: return "momentum";
    case v1::OPTIMIZER_NESTEROV: return "nesterov";
    case v1::OPTIMIZER_ADAM: return "adam";
    case v1::OPTIMIZER_ADAMW: return "adamw";
    case v1::OPTIMIZER_ADAGRAD: return "adagrad";
    default: return "unknown";
  }
}

std::map<std::string, double> HyperParameterMap(const v1::HyperParameters& values) {
  std::map<std::string, double> map;
  for (const Field& field : kFields) map[field.name] = (values.*field.get)();
  return map;
}

v1::HyperParameters HyperParametersOf(const std::map<std::string, double>& values) {
  v1::HyperParameters parameters;
  for (const Field& field : kFields) {
    const auto found = values.find(field.name);
    if (found != values.end()) (parameters.*field.set)(found->second);
  }
  return parameters;
}

state::KeyState DescribeKey(const v1::KeySpec& spec) {
  state::KeyState key;
  key.name = spec.name();
  key.element_count = spec.element_count();
  key.type = TypeOr(spec.type(), ElementType::kF32);
  key.gradient_type = TypeOr(spec.gradient_type(), key.type);
  key.parameter_type = TypeOr(spec.parameter_type(), key.type);
  key.operation = OperationName(spec.operation());
  key.optimizer = OptimizerName(spec.optimizer());
  key.hyper_parameters = HyperParameterMap(spec.hyper_parameters());
  for (const char* name : OptimizerTensorNames(spec.optimizer())) {
    key.optimizer_tensors.push_back({name, numeric::AccumulationType(key.type)});
  }
  return key;
}

std::vector<v1::StateTensor> StateTensors(const state::KeyState& key) {
  std::vector<v1::StateTensor> tensors = {v1::STATE_TENSOR_PARAMETERS};
  if (key.type != key.parameter_type) tensors.push_back(v1::STATE_TENSOR_MASTERS);
  if (!key.optimizer_tensors.empty()) tensors.push_back(v1::STATE_TENSOR_OPTIMIZER_0);
  if (key.optimizer_tensors.size() > 1) tensors.push_back(v1::STATE_TENSOR_OPTIMIZER_1);
  return tensors;
}

std::string TensorName(const state::KeyState& key, v1::StateTensor tensor) {
  switch (tensor) {
    case v1::STATE_TENSOR_PARAMETERS: return state::ParameterTensor(key.name);
    case v1::STATE_TENSOR_MASTERS:
      return key.type != key.parameter_type ? state::MasterTensor(key.name) : std::string();
    case v1::STATE_TENSOR_OPTIMIZER_0:
    case v1::STATE_TENSOR_OPTIMIZER_1: {
      const std::size_t index = OptimizerTensorIndex(tensor);
      if (index >= key.optimizer_tensors.size()) return {};
      return state::OptimizerStateTensor(key.optimizer_tensors[index].name, key.name);
    }
    default: return {};
  }
}

std::uint32_t TensorElementBytes(const state::KeyState& key, v1::StateTensor tensor) {
  switch (tensor) {
    case v1::STATE_TENSOR_PARAMETERS: return numeric::ElementBytes(key.parameter_type);
    case v1::STATE_TENSOR_MASTERS: return numeric::ElementBytes(key.type);
    default: return numeric::ElementBytes(key.optimizer_tensors[OptimizerTensorIndex(tensor)].type);
  }
}

absl::Status CheckSameKey(const state::KeyState& saved, const state::KeyState& running) {
  const auto differ = [&](const char* what, const std::string& theirs, const std::string& ours) {
    return absl::InvalidArgumentError(fmt::format("key {}: the saved state has {} {}, the job {}",
                                                  running.name, what, theirs, ours));
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
