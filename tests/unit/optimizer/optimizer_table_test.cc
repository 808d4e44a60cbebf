// The table of optimizers: names, ranges and defaults are consistent.
#include "common/optimizer/optimizer_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

namespace phub::optimizer {
namespace {

TEST(OptimizerTable, NamesAreApart) {
  std::set<std::string> names;
  for (const Descriptor& row : Descriptors()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_STREQ(ToString(row.optimizer), row.name);
    const std::set<std::string> states(row.states.begin(), row.states.end());
    EXPECT_EQ(states.size(), StateCount(row.optimizer)) << row.name;
    EXPECT_FALSE(states.contains("")) << row.name;
    EXPECT_LE(StateCount(row.optimizer), kStatesMax);
  }
  for (const char* name : {"none", "sgd", "momentum", "nesterov", "adam", "adamw", "adagrad",
                           "rmsprop", "rmsprop_momentum", "rmsprop_centered"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

// Names in files that were saved by any version of phub.
TEST(OptimizerTable, StateIsNamedForSavedFiles) {
  const auto state = [](Optimizer optimizer, std::size_t index) {
    return DescriptorOf(optimizer).states[index];
  };
  EXPECT_STREQ(state(Optimizer::kMomentum, 0), "momentum");
  EXPECT_STREQ(state(Optimizer::kNesterov, 0), "momentum");
  EXPECT_STREQ(state(Optimizer::kAdam, 0), "first_moment");
  EXPECT_STREQ(state(Optimizer::kAdamW, 1), "second_moment");
  EXPECT_STREQ(state(Optimizer::kAdagrad, 0), "sum_of_squares");
  EXPECT_STREQ(state(Optimizer::kRmsProp, 0), "square_average");
  EXPECT_STREQ(state(Optimizer::kRmsPropMomentum, 1), "momentum");
  EXPECT_STREQ(state(Optimizer::kRmsPropCentered, 1), "gradient_average");
}

TEST(OptimizerTable, RowsAreFoundByTheNumberOfAMessage) {
  EXPECT_EQ(FindDescriptor(-1), nullptr);
  EXPECT_EQ(FindDescriptor(static_cast<std::int64_t>(Descriptors().size())), nullptr);
  for (const Descriptor& row : Descriptors()) {
    EXPECT_EQ(FindDescriptor(static_cast<std::int64_t>(row.optimizer)), &row);
    EXPECT_EQ(&DescriptorOf(row.optimizer), &row);
  }
}

// A default value is valid, unless the optimizer requires the user to set one.
TEST(OptimizerTable, HyperParametersAreOnceInARowAndTheirDefaultsPass) {
  for (const Descriptor& row : Descriptors()) {
    std::set<std::string> fields;
    for (const HyperParameter& parameter : row.hyper_parameters) {
      EXPECT_TRUE(fields.insert(parameter.field().name).second) << row.name;
      EXPECT_TRUE(parameter.range == Range::kAboveZero || IsIn(parameter.range, parameter.initial))
          << row.name << " " << parameter.field().name;
    }
    EXPECT_EQ(row.optimizer == Optimizer::kNone, !fields.contains("learning_rate")) << row.name;
  }
}

TEST(OptimizerTable, RangesHoldWhatTheySay) {
  for (const Range range : {Range::kFinite, Range::kAtLeastZero, Range::kZeroIsOff,
                            Range::kAboveZero, Range::kBelowOne, Range::kZero}) {
    EXPECT_FALSE(IsIn(range, std::numeric_limits<double>::quiet_NaN()));
    EXPECT_FALSE(IsIn(range, std::numeric_limits<double>::infinity()));
    EXPECT_EQ(IsIn(range, -1.0), range == Range::kFinite);
    EXPECT_EQ(IsIn(range, 0.0), range != Range::kAboveZero);
    EXPECT_EQ(IsIn(range, 1.0), range != Range::kBelowOne && range != Range::kZero);
  }
}

TEST(OptimizerTable, ArgumentsAreTheNewestValuesExceptThoseThatAreFixed) {
  HyperParameters first;
  HyperParameters values;
  double number = 1.0;
  for (const Field& field : kFields) {
    first.*field.value = number;
    values.*field.value = -number;
    number += 1.0;
  }
  const OptimizerArguments arguments = ArgumentsOf(values, first, 7);
  for (const Field& field : kFields) {
    EXPECT_EQ(arguments.*field.argument, (field.is_fixed ? first : values).*field.value)
        << field.name;
  }
  EXPECT_EQ(arguments.step, 7u);
  EXPECT_EQ(arguments.initial_accumulator, first.initial_accumulator);
}

}  // namespace
}  // namespace phub::optimizer
