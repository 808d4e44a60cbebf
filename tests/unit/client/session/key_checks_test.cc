#include "client/session/key_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "client/session/key_memory.h"
#include "client/session/optimizers.h"
#include "common/base/printable.h"

namespace phub::client {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kBytesMax = 1u << 20;

KeySpec Spec(ElementType type, Optimizer optimizer = None{}, KeyOptions options = {}) {
  return {
      .name = "k", .type = type, .element_count = 10, .optimizer = optimizer, .options = options};
}
void ExpectRefused(const KeySpec& spec, const std::string& says) {
  const auto key = CheckKey(spec, kBytesMax);
  ASSERT_FALSE(key.ok()) << says;
  EXPECT_EQ(key.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(key.status().message()), HasSubstr("key k"));
  EXPECT_THAT(std::string(key.status().message()), HasSubstr(says));
}

TEST(CheckKey, APriorityClassIsOneOfThree) {
  for (const int number : {0, 4, 255})
    ExpectRefused(Spec(f32, None{}, {.priority_class = static_cast<PriorityClass>(number)}),
                  fmt::format("priority class {} is not a valid value", number));
  const auto key =
      CheckKey(Spec(f32, None{}, {.priority_class = PriorityClass::kTensor}), kBytesMax);
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(LevelOf(key->priority_class), 2);
  EXPECT_EQ(ToProto(*key).priority_class(), v1::PRIORITY_CLASS_TENSOR);
}

// A name must be safe to show, to send (protobuf takes UTF-8 only) and to save.
TEST(CheckKey, ANameThatCannotBeShownSentOrSavedIsRefused) {
  for (const char* name : {"", "line\nbreak", "\xff\xfe", "\xc0\xaf", "\u202eevil", "\xc2\x9b",
                           "__metadata__", "phub:state/momentum/w", "phub:"}) {
    KeySpec spec = Spec(f32);
    spec.name = name;
    const auto key = CheckKey(spec, kBytesMax);
    ASSERT_FALSE(key.ok()) << name;
    EXPECT_EQ(key.status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(key.status().message()), ::testing::StartsWith("key name '")) << name;
    EXPECT_EQ(Printable(key.status().message()), key.status().message()) << name;
  }
  for (const char* name :
       {"w", "with space", "ключ", "模型/层", "\"quoted\"", "a\\b", "phub", "\U0001f600"}) {
    KeySpec spec = Spec(f32);
    spec.name = name;
    EXPECT_TRUE(CheckKey(spec, kBytesMax).ok()) << name;
  }
}

TEST(CheckKey, EveryTypeIsWelcomeWithItselfOnTheWire) {
  for (const ElementType type : {f32, f16, bf16, f64, i32, i64, u8}) {
    const auto key = CheckKey(Spec(type), kBytesMax);
    ASSERT_TRUE(key.ok()) << key.status().message();
    EXPECT_EQ(key->gradient_type, Numeric(type));
    EXPECT_EQ(key->parameter_type, Numeric(type));
    EXPECT_EQ(key->operation, Operation::kSum);
    EXPECT_EQ(key->gradients.type, type);
    EXPECT_EQ(key->gradients.count, 10u);
  }
}

TEST(CheckKey, HalvesMayTravelOverAnF32KeyAndNothingElse) {
  const auto key =
      CheckKey(Spec(f32, Adam{}, {.gradient_type = bf16, .parameter_type = f16}), kBytesMax);
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(key->operation, Operation::kMean);
  EXPECT_EQ(key->gradients_bytes(), 20u);
  const v1::KeySpec message = ToProto(*key);
  EXPECT_EQ(message.type(), v1::ELEMENT_TYPE_F32);
  EXPECT_EQ(message.gradient_type(), v1::ELEMENT_TYPE_BF16);
  EXPECT_EQ(message.parameter_type(), v1::ELEMENT_TYPE_F16);
  EXPECT_EQ(message.operation(), v1::OPERATION_MEAN);
  EXPECT_EQ(message.optimizer(), v1::OPTIMIZER_ADAM);
  EXPECT_EQ(message.hyper_parameters().beta2(), 0.999);
  ExpectRefused(Spec(f64, None{}, {.gradient_type = f32}), "gradient_type is f32");
  ExpectRefused(Spec(f16, None{}, {.parameter_type = bf16}), "parameter_type is bf16");
  ExpectRefused(Spec(f32, None{}, {.gradient_type = ElementType{9}}), "not an element type");
  ExpectRefused(Spec(ElementType{0}), "not an element type");
}

TEST(CheckKey, ACollectiveKeyHasNoOptimizerAndNeitherRestartNorRacks) {
  const KeySpec spec = Spec(f32, None{}, {.collective = true});
  const auto key = CheckKey(spec, kBytesMax);
  ASSERT_TRUE(key.ok()) << key.status().message();
  EXPECT_TRUE(key->collective);
  EXPECT_TRUE(ToProto(*key).collective());
  ExpectRefused(Spec(f32, Adam{}, {.collective = true}), "collective keys do not allow an optim");
  const auto restart = CheckKey(spec, kBytesMax, {.restart = true});
  EXPECT_THAT(restart.status().message(), HasSubstr("do not work with restart=true"));
  const auto racks = CheckKey(spec, kBytesMax, {.spans_racks = true});
  EXPECT_THAT(racks.status().message(), HasSubstr("do not work in jobs that span racks"));
}

TEST(CheckKey, IntegersHaveNeitherMeanNorOptimizer) {
  ExpectRefused(Spec(i32, None{}, {.operation = Operation::kMean}),
                "kMean is not defined for type i32");
  ExpectRefused(Spec(u8, Sgd{.learning_rate = 0.1}), "floating-point");
  EXPECT_TRUE(CheckKey(Spec(i64, None{}, {.operation = Operation::kProduct}), kBytesMax).ok());
  EXPECT_TRUE(CheckKey(Spec(u8, None{}, {.operation = Operation::kBitwiseXor}), kBytesMax).ok());
  ExpectRefused(Spec(f32, None{}, {.operation = Operation::kBitwiseOr}),
                "operation bitwise or is defined only for integers, not for f32");
  ExpectRefused(Spec(i64, None{}, {.operation = Operation{77}}), "not an operation");
}

TEST(CheckKey, HyperParametersHaveTheRangesOfTorch) {
  ExpectRefused(Spec(f32, Sgd{.learning_rate = -0.1}), "learning_rate is -0.1");
  ExpectRefused(Spec(f32, Momentum{.momentum = -1}), "momentum is -1");
  ExpectRefused(Spec(f32, Nesterov{.learning_rate = 0.1}), "momentum greater than 0");
  ExpectRefused(Spec(f32, Adam{.beta1 = 1.0}), "beta1 is 1; it must be at least 0 and less than 1");
  ExpectRefused(Spec(f32, AdamW{.beta2 = -0.5}), "beta2");
  ExpectRefused(Spec(f32, AdamW{.epsilon = -1e-9}), "epsilon");
  ExpectRefused(Spec(f32, Adagrad{.initial_accumulator = -1}), "initial_accumulator");
  ExpectRefused(Spec(f32, RmsProp{.alpha = -0.5}), "alpha is -0.5");
  ExpectRefused(Spec(f32, RmsPropMomentum{.momentum = -1}), "momentum is -1");
  EXPECT_TRUE(CheckKey(Spec(f32, RmsPropCentered{.alpha = 1.0}), kBytesMax).ok());
  ExpectRefused(Spec(f32, Sgd{.clip_value = std::numeric_limits<double>::infinity()}), "finite");
  ExpectRefused(Spec(f32, Sgd{.weight_decay = std::numeric_limits<double>::quiet_NaN()}), "finite");
  EXPECT_TRUE(CheckKey(Spec(f32, Momentum{.dampening = -0.5}), kBytesMax).ok());
  EXPECT_TRUE(CheckKey(Spec(f32, Adam{.beta1 = 0.0}), kBytesMax).ok());
}

TEST(CheckKey, MemoryOfTheCallersHasTheWireTypesAndDoesNotOverlap) {
  std::vector<float> floats(20);
  std::vector<double> doubles(10);
  const std::span<float> all(floats);
  ExpectRefused(Spec(f32, None{}, {.gradients = doubles}),
                "gradients have type f32, but type f64 was given");
  ExpectRefused(Spec(f32, None{}, {.parameters = all}), "20 parameters");
  const KeyOptions overlapping{.gradients = all.subspan(0, 10), .parameters = all.subspan(9, 10)};
  ExpectRefused(Spec(f32, None{}, overlapping), "overlap");
  ExpectRefused(Spec(f32, None{}, {.gradients = Elements(nullptr, 10, f32)}), "null");
  const auto key =
      CheckKey(Spec(f32, None{}, {.gradients = all.subspan(0, 10), .parameters = all.subspan(10)}),
               kBytesMax);
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(key->gradients.data, floats.data());
}

TEST(CheckKey, AResultMayArriveWhereItIsSentFrom) {
  std::vector<float> floats(10);
  const std::span<float> all(floats);
  const auto accepts = [&](Movement movement, ConstElements gradients, Elements parameters) {
    const auto key =
        CheckKey(Spec(f32, None{}, {.movement = movement, .parameter_type = parameters.type}),
                 kBytesMax, {.rank = Rank{1}, .world_size = 5});
    EXPECT_TRUE(key.ok());
    return CheckNoOverlap("key", *key, gradients, parameters).ok();
  };
  EXPECT_TRUE(accepts(Movement::kAllReduce, all, all));
  EXPECT_FALSE(accepts(Movement::kAllReduce, all.first(9), all.last(9)));
  EXPECT_FALSE(accepts(Movement::kAllReduce, all, Elements(floats.data(), 10, bf16)));
  for (const std::size_t part : {0u, 2u, 3u}) {
    EXPECT_EQ(accepts(Movement::kReduceScatter, all, all.subspan(part, 2)), part == 2) << part;
  }
  EXPECT_FALSE(accepts(Movement::kReduceScatter, all, Elements(floats.data() + 2, 2, bf16)));
  EXPECT_FALSE(accepts(Movement::kAllToAll, all, all));
}

TEST(CheckKey, AMovementDecidesHowMuchMemoryARankHas) {
  const Membership member{.rank = Rank{1}, .world_size = 5};
  const auto gathered =
      CheckKey(Spec(f16, None{}, {.movement = Movement::kGather}), kBytesMax, member);
  ASSERT_TRUE(gathered.ok());
  EXPECT_EQ(gathered->gradient_count(), 2u);
  EXPECT_EQ(gathered->parameters_bytes(), 20u);
  EXPECT_EQ(ToProto(*gathered).movement(), v1::MOVEMENT_GATHER);
  const auto scattered =
      CheckKey(Spec(f32, None{}, {.movement = Movement::kReduceScatter, .parameter_type = bf16}),
               kBytesMax, member);
  ASSERT_TRUE(scattered.ok());
  EXPECT_EQ(scattered->gradients_bytes(), 40u);
  EXPECT_EQ(scattered->parameters_bytes(), 4u);
  // What a rank gathers may be its own part of the result, and nothing else of it.
  std::vector<float> result(10);
  const std::span<float> all(result);
  const auto inside = [&](std::size_t first) {
    return CheckKey(Spec(f32, None{},
                         {.movement = Movement::kGather,
                          .gradients = all.subspan(first, 2),
                          .parameters = all}),
                    kBytesMax, member)
        .ok();
  };
  EXPECT_TRUE(inside(2));
  EXPECT_FALSE(inside(0));
  EXPECT_FALSE(inside(3));
}

TEST(CheckKey, ARankHasNoMemoryForPartsThatItNeitherSendsNorReceives) {
  const auto count = [](Movement movement, std::uint32_t rank) {
    const auto key = CheckKey(Spec(f32, None{}, {.movement = movement, .root = 1}), kBytesMax,
                              {.rank = Rank{rank}, .world_size = 5});
    EXPECT_TRUE(key.ok());
    EXPECT_EQ(ToProto(*key).element_count(), 10u);
    EXPECT_EQ(ToProto(*key).root(), 1u);
    return std::pair(key->gradient_count(), key->parameter_count());
  };
  EXPECT_EQ(count(Movement::kScatter, 1), std::pair(10ul, 2ul));
  EXPECT_EQ(count(Movement::kScatter, 0), std::pair(0ul, 2ul));
  EXPECT_EQ(count(Movement::kGatherToOne, 1), std::pair(2ul, 10ul));
  EXPECT_EQ(count(Movement::kGatherToOne, 4), std::pair(2ul, 0ul));
}

TEST(CheckKey, AnAllToAllIsHeldForEveryRank) {
  const KeySpec spec = Spec(f32, None{}, {.movement = Movement::kAllToAll});
  const Membership member{.rank = Rank{1}, .world_size = 5};
  const auto key = CheckKey(spec, kBytesMax, member);
  ASSERT_TRUE(key.ok());
  EXPECT_EQ(key->gradient_count(), 10u);
  EXPECT_EQ(key->parameter_count(), 10u);
  EXPECT_EQ(ToProto(*key).element_count(), 50u);
  const auto refused = CheckKey(spec, 49 * sizeof(float), member);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(
      std::string(refused.status().message()),
      HasSubstr("movement all_to_all has 10 elements of 5 ranks, but a key may have at most "
                "49"));
}

TEST(CheckKey, OnlyAPartThatKeepsItsPlaceMayOverlap) {
  const Membership member{.rank = Rank{1}, .world_size = 5};
  std::vector<float> memory(20);
  const std::span<float> all(memory);
  const auto may = [&](KeyOptions options, std::span<float> gradients,
                       std::span<float> parameters) {
    options.gradients = gradients;
    options.parameters = parameters;
    return CheckKey(Spec(f32, None{}, options), kBytesMax, member).ok();
  };
  const KeyOptions scatter{.movement = Movement::kScatter, .root = 1};
  EXPECT_TRUE(may(scatter, all.first(10), all.subspan(2, 2)));
  EXPECT_FALSE(may(scatter, all.first(10), all.subspan(4, 2)));
  const KeyOptions gather{.movement = Movement::kGatherToOne, .root = 1};
  EXPECT_TRUE(may(gather, all.subspan(2, 2), all.first(10)));
  EXPECT_FALSE(may(gather, all.first(2), all.first(10)));
  const KeyOptions all_to_all{.movement = Movement::kAllToAll};
  EXPECT_TRUE(may(all_to_all, all.first(10), all.last(10)));
  EXPECT_FALSE(may(all_to_all, all.first(10), all.first(10)));
}

TEST(CheckKey, MovementsThatCannotBeAreRefused) {
  const auto refused = [](KeySpec spec, const std::string& says) {
    const auto key = CheckKey(spec, kBytesMax, {.rank = Rank{0}, .world_size = 2});
    ASSERT_FALSE(key.ok()) << says;
    EXPECT_THAT(std::string(key.status().message()), HasSubstr(says));
  };
  const KeyOptions gather{.movement = Movement::kGather};
  const KeyOptions scatter{.movement = Movement::kReduceScatter};
  refused(Spec(f32, Sgd{}, scatter), "does not allow an optimizer");
  refused(Spec(f32, None{}, {.movement = static_cast<Movement>(6)}), "6 is not a movement");
  refused(Spec(f32, None{}, {.operation = Operation::kMax, .movement = Movement::kGather}),
          "moves bytes and has no operation");
  refused(Spec(f32, None{}, {.movement = Movement::kGather, .gradient_type = f16}),
          "must be f32, like its type");
  refused(Spec(f32, None{}, {.operation = Operation::kMax, .movement = Movement::kAllToAll}),
          "movement all_to_all moves bytes and has no operation");
  refused(Spec(f32, None{}, {.movement = Movement::kScatter, .root = 2}),
          "root is 2, but the job has only 2 ranks");
  refused(Spec(f32, None{}, {.movement = Movement::kGather, .root = 1}),
          "root is 1, but movement gather has no root");
  KeySpec bundle = Spec(f32, None{}, gather);
  bundle.tensors = {4, 6};
  refused(bundle, "does not allow a bundle");
  KeySpec odd = Spec(f32, None{}, gather);
  odd.element_count = 9;
  refused(odd, "its 9 elements cannot be divided among 2 ranks");
}

TEST(CheckKey, SizesAreBoundedByTheElementsType) {
  KeySpec spec = Spec(f64);
  spec.element_count = kBytesMax / 8;
  EXPECT_TRUE(CheckKey(spec, kBytesMax).ok());
  ++spec.element_count;
  ExpectRefused(spec, "larger than");
}

TEST(HyperParameters, SurviveTheControlPlane) {
  const wire::HyperParameters values = HyperParametersOf(Adagrad{.learning_rate = 0.3,
                                                                 .learning_rate_decay = 0.1,
                                                                 .weight_decay = 0.2,
                                                                 .initial_accumulator = 0.4,
                                                                 .epsilon = 0.5,
                                                                 .clip_value = 0.6});
  v1::HyperParameters message;
  ToProto(values, message);
  EXPECT_EQ(FromProto(message), values);
  EXPECT_EQ(values.learning_rate_decay, 0.1);
  EXPECT_EQ(values.clip_value, 0.6);
}

// ---- Memory ------------------------------------------------------------------------------------

KeyDefinition Defined(Optimizer optimizer, KeyOptions options = {}) {
  auto key = CheckKey(Spec(f32, optimizer, options), kBytesMax);
  EXPECT_TRUE(key.ok());
  return *std::move(key);
}

class KeyMemoryTest : public ::testing::Test {
 protected:
  void Take(bool parameters_shared) {
    own_.resize(PlanOwnMemory(keys_, parameters_shared));
    if (!own_.empty()) memory_.own = own_;
    if (parameters_shared) memory_.parameters = parameters_;
    for (std::size_t i = 0; i < keys_.size(); ++i)
      ASSERT_TRUE(TakeMemory(keys_[i], memory_, 64 * i).ok());
  }
  std::vector<KeyDefinition> keys_;
  std::vector<std::byte> own_;
  std::vector<std::byte> parameters_ = std::vector<std::byte>(512);
  BatchMemory memory_;
};

TEST_F(KeyMemoryTest, PiecesLieInTheRegionsThatTheyBelongTo) {
  keys_.push_back(Defined(Sgd{.learning_rate = 0.1}));
  keys_.push_back(Defined(Sgd{.learning_rate = 0.1}, {.copy = true}));
  keys_.push_back(Defined(None{}));
  Take(/*parameters_shared=*/true);
  EXPECT_EQ(own_.size(), 5 * 64u);  // three gradients, two parameters; 40 bytes each
  EXPECT_TRUE(keys_[0].parameters_shared);
  EXPECT_EQ(keys_[0].parameters.data, parameters_.data());
  EXPECT_EQ(keys_[0].gradients.data, own_.data());
  for (const std::size_t i : {1u, 2u}) {
    EXPECT_FALSE(keys_[i].parameters_shared);
    const auto* data = static_cast<const std::byte*>(keys_[i].parameters.data);
    EXPECT_TRUE(data >= own_.data() && data + 40 <= own_.data() + own_.size());
    EXPECT_NE(keys_[i].parameters.data, keys_[i].gradients.data);
  }
}

TEST_F(KeyMemoryTest, LargePiecesStartOnAPage) {
  for (int i = 0; i < 2; ++i) {
    keys_.push_back(Defined(None{}));
    auto large = Spec(f32, None{});
    large.element_count = (std::uint64_t{1} << 16) + 1;
    auto key = CheckKey(large, kBytesMax);
    ASSERT_TRUE(key.ok());
    keys_.push_back(*std::move(key));
  }
  const std::uint64_t bytes = PlanOwnMemory(keys_, /*parameters_shared=*/false);
  for (const std::size_t i : {1u, 3u}) {
    EXPECT_EQ(keys_[i].own_gradients_offset % 4096, 0u);
    EXPECT_EQ(keys_[i].own_parameters_offset % 4096, 0u);
    EXPECT_GE(keys_[i].own_parameters_offset, keys_[i].own_gradients_offset + (1u << 18) + 4);
  }
  EXPECT_EQ(keys_[0].own_parameters_offset, 64u);  // small pieces stay close together
  EXPECT_LT(bytes, 4 * ((1u << 18) + 2 * 4096u));
}

TEST_F(KeyMemoryTest, ParametersThatAreNotSharedAreInTheOwnRegion) {
  keys_.push_back(Defined(Sgd{.learning_rate = 0.1}));
  Take(/*parameters_shared=*/false);
  EXPECT_FALSE(keys_[0].parameters_shared);
  EXPECT_EQ(keys_[0].parameters.data, own_.data() + 64);
  EXPECT_EQ(own_.size(), 2 * 64u);
}

TEST_F(KeyMemoryTest, WithoutSharedMemoryPagesAreTaken) {
  keys_.push_back(Defined(Sgd{.learning_rate = 0.1}));
  ASSERT_TRUE(TakeMemory(keys_[0], {}, 0).ok());
  ASSERT_NE(keys_[0].gradients.data, nullptr);
  ASSERT_NE(keys_[0].parameters.data, nullptr);
  EXPECT_EQ(keys_[0].parameters.As<float>()[9], 0.0f);
  EXPECT_FALSE(keys_[0].parameters_shared);
}

TEST_F(KeyMemoryTest, WhatTheDaemonSaysIsChecked) {
  keys_.push_back(Defined(Sgd{.learning_rate = 0.1}));
  memory_.parameters = parameters_;
  for (const std::uint64_t offset : {std::uint64_t{512 - 36}, std::uint64_t{3}, UINT64_MAX}) {
    const Status status = TakeMemory(keys_[0], memory_, offset);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << offset;
    EXPECT_THAT(std::string(status.message()), HasSubstr("key k"));
  }
}

}  // namespace
}  // namespace phub::client
