// Compares the public optimizers and those of the protocol with the table.
#include "client/session/optimizers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <utility>

#include "common/optimizer/optimizer_table.h"

namespace phub::client {
namespace {

using optimizer::Descriptor;
using optimizer::Descriptors;

std::string InCapitals(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

// For one alternative of the variant.
template <typename Struct>
void ExpectIsOf(const Descriptor& row) {
  const auto has = optimizer::FieldsOf<Struct>();
  const wire::HyperParameters defaults = HyperParametersOf(Struct{});
  for (std::size_t i = 0; i < optimizer::kFields.size(); ++i) {
    const optimizer::Field& field = optimizer::kFields[i];
    const auto parameter =
        std::ranges::find(row.hyper_parameters, field.value, &optimizer::HyperParameter::value);
    const bool in_row =
        parameter != row.hyper_parameters.end() && parameter->range != optimizer::Range::kZero;
    EXPECT_EQ(has[i], in_row) << row.name << " " << field.name;
    if (!in_row) continue;
    EXPECT_EQ(defaults.*field.value, parameter->initial) << row.name << " " << field.name;
  }
}

TEST(Optimizers, ThePublicStructsAreTheTableRowByRow) {
  ASSERT_EQ(std::variant_size_v<Optimizer>, Descriptors().size());
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (ExpectIsOf<std::variant_alternative_t<kIndex, Optimizer>>(Descriptors()[kIndex]), ...);
  }
  (std::make_index_sequence<std::variant_size_v<Optimizer>>());
}

TEST(Optimizers, TheProtocolsAreTheTableRowByRow) {
  ASSERT_EQ(static_cast<std::size_t>(v1::OptimizerKind_descriptor()->value_count()),
            Descriptors().size());
  for (const Descriptor& row : Descriptors()) {
    const auto kind = static_cast<v1::OptimizerKind>(row.optimizer);
    EXPECT_EQ(v1::OptimizerKind_Name(kind), "OPTIMIZER_" + InCapitals(row.name));
  }
}

TEST(Optimizers, HyperParametersHaveTheirNumbersInTheProtocol) {
  const auto& message = *v1::HyperParameters::descriptor();
  ASSERT_EQ(static_cast<std::size_t>(message.field_count()), optimizer::kFields.size());
  int number = 0;
  for (const optimizer::Field& field : optimizer::kFields) {
    const auto* const found = message.FindFieldByNumber(++number);
    ASSERT_NE(found, nullptr) << field.name;
    EXPECT_EQ(found->name(), field.name);
    EXPECT_EQ(found->cpp_type(), google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE);
  }
}

TEST(Optimizers, SavedFilesHaveRoomForEveryState) {
  for (std::size_t i = 0; i < optimizer::kStatesMax; ++i) {
    EXPECT_EQ(v1::StateTensor_Name(static_cast<v1::StateTensor>(v1::STATE_TENSOR_OPTIMIZER_0 + i)),
              "STATE_TENSOR_OPTIMIZER_" + std::to_string(i));
  }
}

}  // namespace
}  // namespace phub::client
