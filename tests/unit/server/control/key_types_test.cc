#include <cmath>
#include <limits>

#include "tests/unit/server/control/key_refusal_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class KeyTypesTest : public KeyRefusalTest {
 protected:
  static v1::KeySpec KeyOf(v1::ElementType type, v1::Operation operation,
                           v1::OptimizerKind optimizer = v1::OPTIMIZER_NONE) {
    v1::KeySpec key;
    key.set_name("fc1");
    key.set_element_count(100);
    key.set_type(type);
    key.set_operation(operation);
    key.set_optimizer(optimizer);
    if (optimizer == v1::OPTIMIZER_NESTEROV) key.mutable_hyper_parameters()->set_momentum(0.9);
    return key;
  }
};

constexpr v1::ElementType kFloats[] = {v1::ELEMENT_TYPE_F32, v1::ELEMENT_TYPE_F16,
                                       v1::ELEMENT_TYPE_BF16, v1::ELEMENT_TYPE_F64};
constexpr v1::ElementType kIntegers[] = {v1::ELEMENT_TYPE_I32, v1::ELEMENT_TYPE_I64,
                                         v1::ELEMENT_TYPE_U8};

// Their rounds state type, reduction and length, so the key has none of its own.
TEST_F(KeyTypesTest, PooledKeysAreBytesOrAreRefused) {
  v1::KeySpec pool = KeyOf(v1::ELEMENT_TYPE_U8, v1::OPERATION_SUM);
  pool.set_pooled(true);
  EXPECT_THAT(Refusal(pool), HasSubstr("must be collective"));
  pool.set_collective(true);
  EXPECT_EQ(Refusal(pool), "");
  v1::KeySpec other = pool;
  other.set_type(v1::ELEMENT_TYPE_F32);
  EXPECT_THAT(Refusal(other), HasSubstr("must have type u8; it has f32"));
  other = pool;
  other.set_operation(v1::OPERATION_MAX);
  EXPECT_THAT(Refusal(other), HasSubstr("movement all_reduce and operation sum"));
  other = pool;
  other.set_movement(v1::MOVEMENT_GATHER);
  EXPECT_THAT(Refusal(other), HasSubstr("movement all_reduce and operation sum"));
  other = pool;
  other.set_encoding(v1::ENCODING_INT8);
  EXPECT_THAT(Refusal(other), HasSubstr("compression int8"));
  sums_fixed_ = true;
  EXPECT_THAT(Refusal(pool), HasSubstr("sum=fixed"));
  AddKeys(Batch(EnterAs(JoinOf(0, 1)), 0, {pool}));
  Settle();
  EXPECT_EQ(LastBatch().keys[0].pool_bytes, 100u);
}

TEST_F(KeyTypesTest, APriorityClassBecomesALevelOrIsRefused) {
  v1::KeySpec key = KeyOf(v1::ELEMENT_TYPE_F32, v1::OPERATION_SUM);
  key.set_priority_class(static_cast<v1::PriorityClass>(v1::PriorityClass_MAX + 1));
  EXPECT_THAT(Refusal(key), HasSubstr("unknown priority class number 4"));
  v1::KeySpec tensor = key;
  tensor.set_name("tensor");
  tensor.set_priority_class(v1::PRIORITY_CLASS_TENSOR);
  key.clear_priority_class();  // that of older clients
  AddKeys(Batch(EnterAs(JoinOf(0, 1)), 0, {key, tensor}));
  Settle();
  EXPECT_EQ(LastBatch().keys[0].level, 0);
  EXPECT_EQ(LastBatch().keys[1].level, 2);
}

TEST_F(KeyTypesTest, JobsWithFixedSumsTakeSumsAndMeansOfSomeTypes) {
  sums_fixed_ = true;
  for (const v1::ElementType type :
       {v1::ELEMENT_TYPE_F32, v1::ELEMENT_TYPE_F16, v1::ELEMENT_TYPE_BF16}) {
    EXPECT_EQ(Refusal(KeyOf(type, v1::OPERATION_SUM)), "");
    EXPECT_EQ(Refusal(KeyOf(type, v1::OPERATION_MEAN)), "");
    EXPECT_THAT(Refusal(KeyOf(type, v1::OPERATION_MAX)),
                AllOf(HasSubstr("does not support operation max"), HasSubstr("sum=float")));
  }
  EXPECT_EQ(Refusal(KeyOf(v1::ELEMENT_TYPE_I32, v1::OPERATION_SUM)), "");
  for (const auto& [type, name] : {std::pair{v1::ELEMENT_TYPE_F64, "f64"},
                                   {v1::ELEMENT_TYPE_I64, "i64"},
                                   {v1::ELEMENT_TYPE_U8, "u8"}}) {
    EXPECT_THAT(Refusal(KeyOf(type, v1::OPERATION_SUM)),
                AllOf(HasSubstr(std::string("does not support ") + name), HasSubstr("sum=float")));
    v1::KeySpec moved = KeyOf(type, v1::OPERATION_SUM);
    moved.set_movement(v1::MOVEMENT_GATHER);
    EXPECT_EQ(Refusal(moved), "") << "bytes that move are not summed";
  }
}

TEST_F(KeyTypesTest, CoreLoopsGetTheBlockOfFixedSums) {
  v1::JoinRequest join = JoinOf(0, 1);
  join.mutable_options()->set_sum(v1::SUM_FIXED);
  join.mutable_options()->set_sum_block(64);
  v1::KeySpec floats = KeyOf(v1::ELEMENT_TYPE_F32, v1::OPERATION_SUM);
  v1::KeySpec integers = KeyOf(v1::ELEMENT_TYPE_I32, v1::OPERATION_SUM);
  integers.set_name("counts");
  AddKeys(Batch(EnterAs(join), 0, {floats, integers}));
  Settle();
  EXPECT_EQ(LastBatch().keys[0].sum_block, 64u);
  EXPECT_EQ(LastBatch().keys[1].sum_block, 0u) << "integers are summed as always";
}

TEST_F(KeyTypesTest, EveryTypeAndOperationIsTakenButMeansOfIntegersAndBitsOfFloats) {
  for (int operation = v1::OPERATION_SUM; operation <= v1::Operation_MAX; ++operation) {
    for (const v1::ElementType type : kFloats) {
      const std::string refusal = Refusal(KeyOf(type, static_cast<v1::Operation>(operation)));
      if (operation >= v1::OPERATION_BITWISE_AND) {
        EXPECT_THAT(refusal, AllOf(HasSubstr("operation bitwise "),
                                   HasSubstr(" needs an integer key, but its type is ")));
      } else {
        EXPECT_EQ(refusal, "");
      }
    }
    for (const v1::ElementType type : kIntegers) {
      const std::string refusal = Refusal(KeyOf(type, static_cast<v1::Operation>(operation)));
      if (operation == v1::OPERATION_MEAN) {
        EXPECT_THAT(refusal, AllOf(HasSubstr("mean"), HasSubstr("all other operations")));
      } else {
        EXPECT_EQ(refusal, "");
      }
    }
  }
}

TEST_F(KeyTypesTest, AMovementNeedsEqualPartsAndNoOptimizer) {
  v1::KeySpec key = KeyOf(v1::ELEMENT_TYPE_F32, v1::OPERATION_SUM);
  for (const auto movement :
       {v1::MOVEMENT_GATHER, v1::MOVEMENT_REDUCE_SCATTER, v1::MOVEMENT_ALL_TO_ALL,
        v1::MOVEMENT_SCATTER, v1::MOVEMENT_GATHER_TO_ONE}) {
    key.set_movement(movement);
    EXPECT_EQ(Refusal(key), "");
    v1::KeySpec updated = KeyOf(v1::ELEMENT_TYPE_F32, v1::OPERATION_SUM, v1::OPTIMIZER_SGD);
    updated.set_movement(movement);
    EXPECT_THAT(Refusal(updated), HasSubstr("does not allow optimizer sgd"));
  }
  key.set_movement(v1::MOVEMENT_REDUCE_SCATTER);
  key.set_operation(v1::OPERATION_MEAN);
  EXPECT_EQ(Refusal(key), "");
  key.set_movement(v1::MOVEMENT_SCATTER);
  EXPECT_THAT(Refusal(key), HasSubstr("movement scatter moves bytes and has no operation"));
  key.set_movement(v1::MOVEMENT_GATHER);
  EXPECT_THAT(Refusal(key), HasSubstr("movement gather moves bytes and has no operation"));
  key.set_operation(v1::OPERATION_SUM);
  key.set_gradient_type(v1::ELEMENT_TYPE_BF16);
  EXPECT_THAT(Refusal(key), HasSubstr("gradient_type and parameter_type must be f32"));
  key.set_movement(static_cast<v1::Movement>(6));
  EXPECT_THAT(Refusal(key), HasSubstr("unknown movement number 6"));
}

TEST_F(KeyTypesTest, ARootIsARankAndOnlySomeMovementsHaveOne) {
  v1::KeySpec key = KeyOf(v1::ELEMENT_TYPE_F32, v1::OPERATION_SUM);
  key.set_movement(v1::MOVEMENT_SCATTER);
  key.set_root(1);
  EXPECT_THAT(Refusal(key), HasSubstr("root is 1, but the job has only 1 ranks"));
  for (const auto movement : {v1::MOVEMENT_ALL_REDUCE, v1::MOVEMENT_ALL_TO_ALL}) {
    key.set_movement(movement);
    EXPECT_THAT(Refusal(key), HasSubstr("has no root"));
  }
}

TEST_F(KeyTypesTest, AnAllToAllHasAPartForEachPairOfRanks) {
  const std::vector<std::string> sessions = EnterAll(3, "pairs");
  v1::KeySpec key = KeyOf(v1::ELEMENT_TYPE_F64, v1::OPERATION_SUM);
  key.set_movement(v1::MOVEMENT_ALL_TO_ALL);
  key.set_element_count(12);
  EXPECT_THAT(AddKeys(Batch(sessions[0], 0, {key}))->message(),
              HasSubstr("12 elements cannot be divided among 3 ranks"));
  key.set_element_count(18);
  const auto call = AddKeys(Batch(sessions[0], 0, {key}));
  Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  const KeyBatch& batch = LastBatch();
  ASSERT_EQ(batch.chunks.size(), 9u);
  for (std::uint32_t part = 0; part < 9; ++part) {
    EXPECT_EQ(batch.chunks[part].sender, Rank{part / 3});
    EXPECT_EQ(batch.chunks[part].receiver, Rank{part % 3});
    EXPECT_EQ(batch.chunks[part].element_count, 2u);
  }
}

TEST_F(KeyTypesTest, AMovementDoesNotWorkWithWholeIterations) {
  v1::JoinRequest request = JoinOf(0, 1, "whole");
  request.mutable_options()->set_apply(v1::APPLY_ITERATION);
  const std::string session = EnterAs(request);
  v1::KeySpec key = KeyOf(v1::ELEMENT_TYPE_F32, v1::OPERATION_SUM);
  key.set_movement(v1::MOVEMENT_REDUCE_SCATTER);
  EXPECT_THAT(AddKeys(Batch(session, 0, {key}))->message(),
              HasSubstr("movement reduce_scatter does not work with apply=iteration"));
}

TEST_F(KeyTypesTest, ACollectiveKeyMovesAlsoWithWholeIterations) {
  v1::JoinRequest request = JoinOf(0, 1, "whole");
  request.mutable_options()->set_apply(v1::APPLY_ITERATION);
  const std::string session = EnterAs(request);
  v1::KeySpec key = KeyOf(v1::ELEMENT_TYPE_F32, v1::OPERATION_SUM);
  key.set_movement(v1::MOVEMENT_REDUCE_SCATTER);
  key.set_collective(true);
  const auto call = AddKeys(Batch(session, 0, {key}));
  Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  EXPECT_TRUE(LastBatch().keys[0].collective);
}

TEST_F(KeyTypesTest, ACollectiveKeyHasNoOptimizerAndNoRestart) {
  v1::KeySpec key = KeyOf(v1::ELEMENT_TYPE_F32, v1::OPERATION_SUM, v1::OPTIMIZER_SGD);
  key.set_collective(true);
  EXPECT_THAT(Refusal(key), HasSubstr("collective keys do not allow optimizer sgd"));
  key.set_optimizer(v1::OPTIMIZER_NONE);
  EXPECT_EQ(Refusal(key), "");
  v1::JoinRequest request = JoinOf(0, 1, "restarts");
  request.mutable_options()->set_on_loss(v1::LOSS_POLICY_WAIT);
  request.mutable_options()->set_restart(true);
  const std::string session = EnterAs(request);
  EXPECT_THAT(AddKeys(Batch(session, 0, {key}))->message(),
              HasSubstr("key fc1: collective keys do not work with restart=true"));
}

TEST_F(KeyTypesTest, PartsAreCutOnTheirOwnAndBelongToRanks) {
  const std::vector<std::string> sessions = EnterAll(3, "parts");
  v1::KeySpec key = KeyOf(v1::ELEMENT_TYPE_F64, v1::OPERATION_SUM);
  key.set_movement(v1::MOVEMENT_REDUCE_SCATTER);
  EXPECT_THAT(AddKeys(Batch(sessions[0], 0, {key}))->message(),
              HasSubstr("100 elements cannot be divided among 3 ranks"));
  constexpr std::uint32_t kInChunk = 1024 / 8;  // of f64
  key.set_element_count(std::uint64_t{3} * (kInChunk + 1));
  const auto call = AddKeys(Batch(sessions[0], 0, {key}));
  Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  EXPECT_EQ(call->response.placements(0).chunk_bins_size(), 6);
  const KeyBatch& batch = LastBatch();
  ASSERT_EQ(batch.chunks.size(), 6u);
  for (std::uint32_t chunk = 0; chunk < 6; ++chunk) {
    EXPECT_EQ(batch.chunks[chunk].receiver, Rank{chunk / 2});
    EXPECT_EQ(batch.chunks[chunk].element_count, chunk % 2 == 0 ? kInChunk : 1u);
    EXPECT_EQ(batch.chunks[chunk].element_offset,
              chunk / 2 * (kInChunk + 1) + (chunk % 2 == 0 ? 0 : kInChunk));
  }
}

TEST_F(KeyTypesTest, EveryOptimizerNeedsAFloatingPointKey) {
  for (int kind = v1::OPTIMIZER_SGD; kind < v1::OptimizerKind_ARRAYSIZE; ++kind) {
    const auto optimizer = static_cast<v1::OptimizerKind>(kind);
    for (const v1::ElementType type : kFloats) {
      EXPECT_EQ(Refusal(KeyOf(type, v1::OPERATION_MEAN, optimizer)), "");
    }
    for (const v1::ElementType type : kIntegers) {
      EXPECT_THAT(
          Refusal(KeyOf(type, v1::OPERATION_SUM, optimizer)),
          AllOf(HasSubstr("floating-point"), HasSubstr("integer keys must use optimizer none")));
    }
  }
}

TEST_F(KeyTypesTest, HalvesMayTravelForF32AndNothingElseForAnotherType) {
  for (int type = 1; type <= 7; ++type) {
    for (int wire = 0; wire <= 8; ++wire) {
      v1::KeySpec key = KeyOf(static_cast<v1::ElementType>(type), v1::OPERATION_SUM);
      key.set_gradient_type(static_cast<v1::ElementType>(wire));
      const bool allowed = wire == 0 || wire == type ||
                           (type == v1::ELEMENT_TYPE_F32 &&
                            (wire == v1::ELEMENT_TYPE_F16 || wire == v1::ELEMENT_TYPE_BF16));
      const std::string gradient = Refusal(key);
      EXPECT_EQ(gradient.empty(), allowed) << type << " as " << wire;
      if (!allowed) {
        EXPECT_THAT(gradient, HasSubstr("gradient_type"));
      }
      key.clear_gradient_type();
      key.set_parameter_type(static_cast<v1::ElementType>(wire));
      EXPECT_EQ(Refusal(key).empty(), allowed) << type << " as " << wire;
    }
  }
}

TEST_F(KeyTypesTest, HyperParametersHaveTheRangesOfTorchOptim) {
  struct Case {
    v1::OptimizerKind optimizer;
    void (v1::HyperParameters::*set)(double);
    double value;
    const char* message;  // empty: accepted
  };
  using H = v1::HyperParameters;
  const Case cases[] = {
      {v1::OPTIMIZER_SGD, &H::set_learning_rate, -1e-9, "learning_rate of sgd"},
      {v1::OPTIMIZER_SGD, &H::set_learning_rate, 0, ""},
      {v1::OPTIMIZER_SGD, &H::set_weight_decay, -1, "weight_decay of sgd"},
      {v1::OPTIMIZER_SGD, &H::set_clip_value, -0.5, "clip_value of sgd is -0.5"},
      {v1::OPTIMIZER_SGD, &H::set_momentum, -1, ""},  // sgd does not use it
      {v1::OPTIMIZER_MOMENTUM, &H::set_momentum, -1, "momentum of momentum"},
      {v1::OPTIMIZER_MOMENTUM, &H::set_momentum, 1.5, ""},
      {v1::OPTIMIZER_MOMENTUM, &H::set_dampening, -1, ""},
      {v1::OPTIMIZER_NESTEROV, &H::set_dampening, 0.1, "dampening of nesterov"},
      {v1::OPTIMIZER_NESTEROV, &H::set_momentum, 0, "momentum of nesterov"},
      {v1::OPTIMIZER_ADAM, &H::set_beta1, 1, "beta1 of adam is 1; it must be at least 0 and less"},
      {v1::OPTIMIZER_ADAM, &H::set_beta1, 0.999, ""},
      {v1::OPTIMIZER_ADAMW, &H::set_beta2, -0.1, "beta2 of adamw"},
      {v1::OPTIMIZER_ADAMW, &H::set_beta2, 1, "beta2 of adamw"},
      {v1::OPTIMIZER_ADAM, &H::set_epsilon, -1e-8, "epsilon of adam"},
      {v1::OPTIMIZER_ADAGRAD, &H::set_epsilon, -1e-8, "epsilon of adagrad"},
      {v1::OPTIMIZER_ADAGRAD, &H::set_learning_rate_decay, -1, "learning_rate_decay of adagrad"},
      {v1::OPTIMIZER_ADAGRAD, &H::set_initial_accumulator, -1, "initial_accumulator of adagrad"},
      {v1::OPTIMIZER_RMSPROP, &H::set_alpha, -0.1, "alpha of rmsprop is -0.1"},
      {v1::OPTIMIZER_RMSPROP_MOMENTUM, &H::set_momentum, -1, "momentum of rmsprop_momentum"},
      {v1::OPTIMIZER_RMSPROP_CENTERED, &H::set_epsilon, -1, "epsilon of rmsprop_centered"},
      {v1::OPTIMIZER_ADAGRAD, &H::set_alpha, -1, ""},
      {v1::OPTIMIZER_ADAM, &H::set_initial_accumulator, -1, ""},
  };
  for (const Case& each : cases) {
    v1::KeySpec key = KeyOf(v1::ELEMENT_TYPE_F32, v1::OPERATION_MEAN, each.optimizer);
    (key.mutable_hyper_parameters()->*each.set)(each.value);
    const std::string refusal = Refusal(key);
    if (*each.message == '\0') {
      EXPECT_EQ(refusal, "");
    } else {
      EXPECT_THAT(refusal, HasSubstr(each.message));
    }
  }
  // No hyper-parameter may be infinite or NaN, even one that the optimizer does not use.
  using Set = void (H::*)(double);
  for (const Set set :
       {&H::set_learning_rate, &H::set_weight_decay, &H::set_clip_value, &H::set_momentum,
        &H::set_dampening, &H::set_beta1, &H::set_beta2, &H::set_epsilon,
        &H::set_learning_rate_decay, &H::set_initial_accumulator}) {
    for (const double value : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      v1::KeySpec key = KeyOf(v1::ELEMENT_TYPE_F32, v1::OPERATION_SUM);
      (key.mutable_hyper_parameters()->*set)(value);
      EXPECT_THAT(Refusal(key), HasSubstr("not finite"));
    }
  }
}

TEST_F(KeyTypesTest, CoreLoopsGetTypesAndDoublesAsTheyWereSaid) {
  const std::string session = Enter(0, 1);
  v1::KeySpec key = KeyOf(v1::ELEMENT_TYPE_F32, v1::OPERATION_MEAN, v1::OPTIMIZER_ADAMW);
  key.set_gradient_type(v1::ELEMENT_TYPE_BF16);
  key.set_parameter_type(v1::ELEMENT_TYPE_F16);
  key.mutable_hyper_parameters()->set_beta1(0.9);
  key.mutable_hyper_parameters()->set_epsilon(1e-8);
  v1::KeySpec bytes = KeyOf(v1::ELEMENT_TYPE_U8, v1::OPERATION_MAX);
  bytes.set_name("mask");
  bytes.set_element_count(3000);
  v1::KeySpec doubles = KeyOf(v1::ELEMENT_TYPE_F64, v1::OPERATION_PRODUCT);
  doubles.set_name("wide");
  doubles.set_element_count(300);
  AddKeys(Batch(session, 0, {key, bytes, doubles}));
  Settle();
  const KeyBatch& batch = LastBatch();
  ASSERT_EQ(batch.keys.size(), 3u);
  EXPECT_EQ(batch.keys[0].gradient_type, ElementType::kBf16);
  EXPECT_EQ(batch.keys[0].parameter_type, ElementType::kF16);
  EXPECT_EQ(batch.keys[0].optimizer, Optimizer::kAdamW);
  EXPECT_EQ(batch.keys[0].reduction, Reduction::kMean);
  EXPECT_EQ(batch.keys[0].hyper_parameters[1].values.beta1, 0.9);
  EXPECT_EQ(batch.keys[0].hyper_parameters[1].values.epsilon, 1e-8);
  EXPECT_EQ(batch.keys[1].reduction, Reduction::kMax);
  EXPECT_EQ(batch.keys[2].reduction, Reduction::kProduct);
  // Expect: chunks of 1024 bytes of the key's own type.
  ASSERT_EQ(batch.chunks.size(), 1u + 3 + 3);
  EXPECT_EQ(batch.chunks[1].element_count, 1024u);
  EXPECT_EQ(batch.chunks[3].element_count, 952u);
  EXPECT_EQ(batch.chunks[3].element_offset, 2048u);
  EXPECT_EQ(batch.chunks[4].element_count, 128u);
  EXPECT_EQ(batch.chunks[6].element_count, 44u);
  // Expect: unset wire types are the key's own type, and setting them to it makes no difference.
  EXPECT_EQ(batch.keys[2].gradient_type, ElementType::kF64);
}

TEST_F(KeyTypesTest, AWireTypeThatIsSaidAndOneThatIsLeftOpenAgree) {
  const std::vector<std::string> sessions = EnterAll(2);
  v1::KeySpec key = KeyOf(v1::ELEMENT_TYPE_F32, v1::OPERATION_SUM);
  AddKeys(Batch(sessions[0], 0, {key}));
  key.set_gradient_type(v1::ELEMENT_TYPE_F32);
  const auto same = AddKeys(Batch(sessions[1], 0, {key}));
  Settle();
  EXPECT_TRUE(same->ok()) << same->message();
  key.set_name("fc2");
  AddKeys(Batch(sessions[0], 1, {key}));
  key.set_parameter_type(v1::ELEMENT_TYPE_BF16);
  const auto other = AddKeys(Batch(sessions[1], 1, {key}));
  EXPECT_THAT(other->message(),
              AllOf(HasSubstr("parameter_type f32"), HasSubstr("parameter_type bf16")));
}

}  // namespace
}  // namespace phub::server
