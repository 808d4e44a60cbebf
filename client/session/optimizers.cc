#include "client/session/optimizers.h"

#include <fmt/core.h>

#include <cctype>
#include <cmath>
#include <string>
#include <variant>

#include "common/optimizer/message_fields.h"
#include "common/optimizer/optimizer_table.h"

namespace phub::client {
namespace {

using optimizer::Range;

const optimizer::Descriptor& DescriptorOf(const Optimizer& optimizer) {
  return optimizer::DescriptorOf(static_cast<optimizer::Optimizer>(optimizer.index()));
}

const char* Allowed(Range range) {
  switch (range) {
    case Range::kFinite: return "a finite number";
    case Range::kZeroIsOff: return "0 (off) or more";
    case Range::kBelowOne: return "at least 0 and less than 1";
    case Range::kZero: return "0";
    case Range::kAtLeastZero:
    case Range::kAboveZero: break;
  }
  return "0 or more";
}

// The name of the public struct: "Adam".
std::string Capitalized(std::string name) {
  name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  return name;
}

}  // namespace

wire::HyperParameters HyperParametersOf(const Optimizer& optimizer) {
  return std::visit([](const auto& one) { return optimizer::FromStruct(one); }, optimizer);
}

v1::OptimizerKind OptimizerKindOf(const Optimizer& optimizer) {
  return static_cast<v1::OptimizerKind>(optimizer.index());
}

v1::Operation OperationOf(Operation operation) {
  switch (operation) {
    case Operation::kSum: return v1::OPERATION_SUM;
    case Operation::kMean: return v1::OPERATION_MEAN;
    case Operation::kMin: return v1::OPERATION_MIN;
    case Operation::kMax: return v1::OPERATION_MAX;
    case Operation::kProduct: return v1::OPERATION_PRODUCT;
    case Operation::kBitwiseAnd: return v1::OPERATION_BITWISE_AND;
    case Operation::kBitwiseOr: return v1::OPERATION_BITWISE_OR;
    case Operation::kBitwiseXor: return v1::OPERATION_BITWISE_XOR;
    case Operation::kDefault: break;
  }
  return v1::OPERATION_UNSPECIFIED;
}

numeric::Reduction ReductionOf(Operation operation) {
  // The numbers of Operation follow kDefault in the same order.
  return static_cast<numeric::Reduction>(static_cast<unsigned>(operation) - 1);
}

void ToProto(const wire::HyperParameters& values, v1::HyperParameters& message) {
  optimizer::ToMessage(values, message);
}

wire::HyperParameters FromProto(const v1::HyperParameters& message) {
  return optimizer::FromMessage(message);
}

Status CheckHyperParameters(std::string_view place, const Optimizer& optimizer) {
  const wire::HyperParameters values = HyperParametersOf(optimizer);
  for (const optimizer::HyperParameter& parameter : DescriptorOf(optimizer).hyper_parameters) {
    const double value = values.*parameter.value;
    if (IsIn(parameter.range, value)) continue;
    const char* const name = parameter.field().name;
    if (parameter.range == Range::kAboveZero && value == 0.0)
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{}: {} needs a {} greater than 0", place,
                                Capitalized(DescriptorOf(optimizer).name), name));
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: {} is {}; it must be {}", place, name, value,
                              std::isfinite(value) ? Allowed(parameter.range) : "a finite number"));
  }
  return Status();
}

}  // namespace phub::client
