// Compares the optimizers with PyTorch's own, from files that make_goldens.py wrote, and with their
// formulas in long double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/simd/arrays.h"

namespace phub::simd {
namespace {

constexpr std::size_t kSteps = 10;
constexpr std::size_t kElements = 20;

using Numbers = std::vector<double>;

Numbers SplitNumbers(const std::string& line) {
  Numbers numbers;
  std::istringstream fields(line);
  for (std::string field; std::getline(fields, field, ',');) {
    numbers.push_back(std::strtod(field.c_str(), nullptr));
  }
  return numbers;
}

std::ifstream OpenGolden(const std::string& name) {
  std::ifstream file(std::string(PHUB_SIMD_GOLDENS) + "/" + name + ".csv");
  EXPECT_TRUE(file.is_open()) << name;
  return file;
}

// One file: the optimizer, the arguments and parameters of each step, and the inputs.
struct Golden {
  Optimizer optimizer = Optimizer::kNone;
  std::vector<OptimizerArguments> arguments;  // for steps 1..
  std::vector<Numbers> parameters;            // after steps 0..
  std::vector<Numbers> gradients;             // for steps 1..
};

OptimizerArguments ArgumentsOf(std::map<std::string, double> told) {
  OptimizerArguments arguments;
  arguments.weight_decay = told["weight_decay"];
  arguments.momentum = told["momentum"];
  arguments.dampening = told["dampening"];
  arguments.beta1 = told["beta1"];
  arguments.beta2 = told["beta2"];
  arguments.epsilon = told["epsilon"];
  arguments.learning_rate_decay = told["learning_rate_decay"];
  arguments.initial_accumulator = told["initial_accumulator"];
  arguments.alpha = told["alpha"];
  return arguments;
}

void ReadInputs(const std::string& type, Golden& golden) {
  std::ifstream file = OpenGolden("inputs." + type);
  for (std::string line; std::getline(file, line);) {
    Numbers numbers = SplitNumbers(line);
    const bool initial = numbers[0] == 0.0;
    numbers.erase(numbers.begin());
    (initial ? golden.parameters : golden.gradients).push_back(numbers);
  }
}

Golden ReadGolden(const std::string& name, const std::string& type) {
  Golden golden;
  ReadInputs(type, golden);
  std::ifstream file = OpenGolden(name + "." + type);
  std::string line;
  std::getline(file, line);
  std::map<std::string, double> told;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    const std::string value = word.substr(equals + 1);
    told[word.substr(0, equals)] = std::strtod(value.c_str(), nullptr);
    for (const Optimizer optimizer : kOptimizers) {
      if (value == ToString(optimizer)) golden.optimizer = optimizer;
    }
  }
  while (std::getline(file, line)) {
    Numbers numbers = SplitNumbers(line);
    golden.arguments.push_back(ArgumentsOf(told));
    golden.arguments.back().step = static_cast<std::uint64_t>(numbers[0]);
    golden.arguments.back().learning_rate = numbers[1];
    golden.parameters.emplace_back(numbers.begin() + 2, numbers.end());
  }
  EXPECT_NE(golden.optimizer, Optimizer::kNone) << name;
  EXPECT_EQ(golden.arguments.size(), kSteps) << name;
  EXPECT_EQ(golden.parameters.size(), kSteps + 1) << name;
  EXPECT_EQ(golden.gradients.size(), kSteps) << name;
  for (const Numbers& numbers : golden.parameters) EXPECT_EQ(numbers.size(), kElements);
  for (const Numbers& numbers : golden.gradients) EXPECT_EQ(numbers.size(), kElements);
  return golden;
}

template <class T>
std::byte* BytesOf(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

// The kernels' parameters after each step.
template <class T>
std::vector<Numbers> Train(const Golden& golden) {
  std::vector<T> parameters(golden.parameters[0].begin(), golden.parameters[0].end());
  std::vector<T> states[kStatesMax];
  for (auto& state : states) state.assign(kElements, T{123});  // the initial value must not matter
  std::vector<Numbers> after = {golden.parameters[0]};
  for (std::size_t step = 0; step < kSteps; ++step) {
    std::vector<T> gradient(golden.gradients[step].begin(), golden.gradients[step].end());
    constexpr ElementType kType = sizeof(T) == 4 ? ElementType::kF32 : ElementType::kF64;
    const Round round{
        kType, kType, kType, Reduction::kSum, golden.optimizer, 1, golden.arguments[step]};
    const std::byte* const input = BytesOf(gradient);
    RoundMemory memory;
    memory.parameters = memory.next_parameters = BytesOf(parameters);
    memory.state = {BytesOf(states[0]), BytesOf(states[1])};
    ApplyRound(round, {nullptr, {&input, 1}}, kElements, memory);
    after.emplace_back(parameters.begin(), parameters.end());
  }
  return after;
}

// The formulas in optimizers.h, for one element.
struct Formula {
  long double p;
  long double m = 0;
  long double v = 0;
  void Step(Optimizer optimizer, const OptimizerArguments& a, long double g) {
    const auto t = static_cast<long double>(a.step);
    const long double rate = a.learning_rate;
    if (optimizer == Optimizer::kAdamW) {
      p *= 1 - rate * a.weight_decay;
    } else {
      g += a.weight_decay * p;
    }
    switch (optimizer) {
      case Optimizer::kMomentum:
      case Optimizer::kNesterov:
        m = a.step == 1 ? g : a.momentum * m + (1 - a.dampening) * g;
        p -= rate * (optimizer == Optimizer::kNesterov ? g + a.momentum * m : m);
        break;
      case Optimizer::kAdam:
      case Optimizer::kAdamW:
        m = a.beta1 * m + (1 - a.beta1) * g;
        v = a.beta2 * v + (1 - a.beta2) * g * g;
        p -= rate * (m / (1 - std::pow(static_cast<long double>(a.beta1), t))) /
             (std::sqrt(v / (1 - std::pow(static_cast<long double>(a.beta2), t))) + a.epsilon);
        break;
      case Optimizer::kAdagrad:
        v = (a.step == 1 ? a.initial_accumulator : v) + g * g;
        p -= rate / (1 + (t - 1) * a.learning_rate_decay) * g / (std::sqrt(v) + a.epsilon);
        break;
      case Optimizer::kRmsProp:
      case Optimizer::kRmsPropMomentum:
      case Optimizer::kRmsPropCentered: StepRmsProp(optimizer, a, g); break;
      default: p -= rate * g;
    }
  }
  // m: the momentum, or the average of gradients.
  void StepRmsProp(Optimizer optimizer, const OptimizerArguments& a, long double g) {
    v = a.alpha * v + (1 - a.alpha) * g * g;
    long double variance = v;
    if (optimizer == Optimizer::kRmsPropCentered) {
      m = a.alpha * m + (1 - a.alpha) * g;
      variance -= m * m;
    }
    const long double change = g / (std::sqrt(variance) + a.epsilon);
    if (optimizer == Optimizer::kRmsPropMomentum) m = a.momentum * m + change;
    p -= a.learning_rate * (optimizer == Optimizer::kRmsPropMomentum ? m : change);
  }
};

std::vector<Numbers> TrainByFormula(const Golden& golden) {
  std::vector<Numbers> after(kSteps + 1, Numbers(kElements));
  for (std::size_t i = 0; i < kElements; ++i) {
    Formula formula{golden.parameters[0][i]};
    for (std::size_t step = 0; step <= kSteps; ++step) {
      if (step > 0) {
        formula.Step(golden.optimizer, golden.arguments[step - 1], golden.gradients[step - 1][i]);
      }
      after[step][i] = static_cast<double>(formula.p);
    }
  }
  return after;
}

// The largest difference, in units in the last place of max(1, |number|). Parameters come from a
// normal distribution, and those near 0 were rounded when they were larger.
template <class T>
double LargestDifference(const std::vector<Numbers>& actual, const std::vector<Numbers>& expected) {
  double largest = 0.0;
  for (std::size_t step = 0; step <= kSteps; ++step) {
    for (std::size_t i = 0; i < kElements; ++i) {
      const double difference = std::fabs(actual[step][i] - expected[step][i]);
      const double magnitude = std::max(1.0, std::fabs(expected[step][i]));
      const double last_bit =
          std::ldexp(static_cast<double>(std::numeric_limits<T>::epsilon()), std::ilogb(magnitude));
      if (!(difference / last_bit <= largest)) largest = difference / last_bit;
    }
  }
  return largest;
}

constexpr const char* kNames[] = {
    "sgd",
    "sgd_decay",
    "momentum",
    "momentum_dampening",
    "nesterov",
    "nesterov_decay",
    "adam",
    "adam_decay",
    "adamw",
    "adagrad",
    "adagrad_decay",
    "rmsprop",
    "rmsprop_decay",
    "rmsprop_momentum",
    "rmsprop_centered",
};

class GoldensOnTarget : public OnTarget {};
INSTANTIATE_TEST_SUITE_P(Machine, GoldensOnTarget,
                         ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()), NameOfTarget);

// No bit differs: the same operations in the same order, and powers as exact as libm's.
TEST_P(GoldensOnTarget, PyTorchHasTheSameBits) {
  for (const std::string name : kNames) {
    const Golden f32 = ReadGolden(name, "f32");
    EXPECT_EQ(LargestDifference<float>(Train<float>(f32), f32.parameters), 0.0) << name;
    const Golden f64 = ReadGolden(name, "f64");
    EXPECT_EQ(LargestDifference<double>(Train<double>(f64), f64.parameters), 0.0) << name;
  }
}

// Ten steps round their parameters ten times, by half a unit in the last place each, and their
// changes as well. The largest observed difference is 4 units, in f32 and f64 alike.
TEST_P(GoldensOnTarget, FormulasAgree) {
  constexpr double kLastBits = 5.0;
  for (const std::string name : kNames) {
    const Golden f32 = ReadGolden(name, "f32");
    EXPECT_LE(LargestDifference<float>(Train<float>(f32), TrainByFormula(f32)), kLastBits) << name;
    const Golden f64 = ReadGolden(name, "f64");
    EXPECT_LE(LargestDifference<double>(Train<double>(f64), TrainByFormula(f64)), kLastBits)
        << name;
  }
}

}  // namespace
}  // namespace phub::simd
