// The error that ranks get when they disagree: both ranks, and what each of them sent.
#include "server/control/jobs/conflict_text.h"

#include <gtest/gtest.h>

#include "server/core/job_shard.h"

namespace phub::server {
namespace {

using wire::RoundOperation;

struct Disagreement {
  const char* what;
  FaultCode code;
  Conflict conflict;
  const char* text;
};

ConflictSide Gradient(std::uint32_t version, wire::HyperParameters values) {
  return {.is_known = true, .version = HyperVersion{version}, .has_values = true, .values = values};
}
ConflictSide Assign(std::uint32_t root, ElementType type = ElementType::kF32) {
  return {.is_known = true, .operation = RoundOperation::kAssign, .root = Rank{root}, .type = type};
}
ConflictSide OtherRack() { return {.is_known = true, .version = HyperVersion{2}}; }
ConflictSide Decision(bool skips, double scale) {
  return {.is_known = true, .skips = skips, .scale = scale};
}

const Disagreement kCases[] = {
    {"values of one version",
     FaultCode::kHyperParametersMismatch,
     {Gradient(2, {.learning_rate = 0.1, .momentum = 0.9}),
      Gradient(2, {.learning_rate = 0.01, .momentum = 0.9})},
     "every rank must set the same hyper-parameters, but A set learning_rate=0.1 and B set "
     "learning_rate=0.01"},
    {"several values",
     FaultCode::kHyperParametersMismatch,
     {Gradient(2, {.learning_rate = 0.1, .momentum = 0.9}), Gradient(2, {.learning_rate = 1e-5})},
     "every rank must set the same hyper-parameters, but A set learning_rate=0.1, momentum=0.9 "
     "and B set learning_rate=1e-05, momentum=0"},
    {"zeros of two signs",
     FaultCode::kHyperParametersMismatch,
     {Gradient(2, {.weight_decay = -0.0}), Gradient(2, {})},
     "every rank must set the same hyper-parameters, but A set weight_decay=-0 and B set "
     "weight_decay=0"},
    {"only one rank has changed them",
     FaultCode::kRoundMismatch,
     {Gradient(2, {.learning_rate = 0.1}), Gradient(1, {.learning_rate = 0.2})},
     "every rank must push the same round, but A pushed a gradient with learning_rate=0.1 and B "
     "pushed a gradient with learning_rate=0.2"},
    {"one rank has set the same values again",
     FaultCode::kRoundMismatch,
     {Gradient(3, {.learning_rate = 0.1}), Gradient(2, {.learning_rate = 0.1})},
     "every rank must push the same round, but A pushed a gradient after 2 changes of its "
     "hyper-parameters and B pushed a gradient after 1 change of its hyper-parameters"},
    {"values of another rack",
     FaultCode::kRoundMismatch,
     {OtherRack(), Gradient(2, {.learning_rate = 0.1})},
     "every rank must push the same round, but A pushed a gradient with other hyper-parameters "
     "and B pushed a gradient with learning_rate=0.1"},
    {"Initialize on one rank only",
     FaultCode::kRoundMismatch,
     {Gradient(1, {}), Assign(0)},
     "every rank must push the same round, but A pushed a gradient and B pushed Initialize or "
     "Broadcast with root 0; every rank must call Initialize or Broadcast for a key, or none"},
    {"roots",
     FaultCode::kRoundMismatch,
     {Assign(1), Assign(0)},
     "every rank must push the same round, but A pushed Initialize or Broadcast with root 1 and B "
     "pushed Initialize or Broadcast with root 0"},
    {"types",
     FaultCode::kRoundMismatch,
     {Assign(1), Assign(1, ElementType::kBf16)},
     "every rank must push the same round, but A pushed Initialize or Broadcast with root 1 and "
     "values of type f32 and B pushed Initialize or Broadcast with root 1 and values of type "
     "bf16"},
    {"a root that does not exist",
     FaultCode::kRoundMismatch,
     {Assign(7), {}},
     "A pushed Initialize or Broadcast with root 7, but the job has no such rank"},
    {"LoadCheckpoint on one rank only",
     FaultCode::kRoundMismatch,
     {Gradient(1, {}), {.is_known = true, .operation = RoundOperation::kLoad}},
     "every rank must push the same round, but A pushed a gradient and B pushed LoadCheckpoint; "
     "every rank must call LoadCheckpoint before its first push"},
    {"skips",
     FaultCode::kDecisionMismatch,
     {Decision(true, 1.0), Decision(false, 0.25)},
     "every rank must make the same clip or skip decision for an iteration, but A decided to skip "
     "it and B decided to apply it with the gradients scaled by 0.25"},
};

TEST(ConflictText, NamesBothSidesAndBothValues) {
  for (const Disagreement& each : kCases) {
    SCOPED_TRACE(each.what);
    EXPECT_EQ(DescribeConflict(each.code, each.conflict, "A", "B"), each.text);
  }
}

}  // namespace
}  // namespace phub::server
