#include "server/control/jobs/conflict_text.h"

#include <fmt/format.h>

#include <cstdint>

#include "common/base/same_bits.h"
#include "common/optimizer/hyper_parameters.h"

namespace phub::server {
namespace {

using wire::RoundOperation;

// "learning_rate=0.1, momentum=0.9": the values of `own` that differ from those of `other`; if
// those are not known, all that are set.
std::string DescribeValues(const ConflictSide& own, const ConflictSide& other) {
  if (!own.has_values) return "other hyper-parameters";
  std::string text;
  for (const optimizer::Field& field : optimizer::kFields) {
    const double value = own.values.*field.value;
    const double others = other.has_values ? other.values.*field.value : 0.0;
    if (SameBits(value, others)) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", field.name, value);
  }
  return text;
}

// "operation 7 of the pool: sum of 1024 elements of type f32, and 2 more rounds"
std::string DescribePooled(const ConflictSide& side) {
  const bool moves = side.operation == RoundOperation::kPoolMove;
  std::string text =
      fmt::format("operation {} of the pool: {} of {} element{} of type {}",
                  side.pool.sequence & wire::kPoolSequenceMask,
                  moves ? "broadcast" : numeric::ToString(side.pool.reduction), side.pool.elements,
                  side.pool.elements == 1 ? "" : "s", numeric::ToString(side.type));
  if (moves) text += fmt::format(" from rank {}", side.root.value);
  const std::uint32_t left = side.pool.sequence >> wire::kPoolSequenceBits;
  if (left > 0) text += fmt::format(", and {} more round{}", left, left == 1 ? "" : "s");
  return text;
}

std::string DescribeRound(const ConflictSide& own, const ConflictSide& other) {
  switch (own.operation) {
    case RoundOperation::kAssign: {
      std::string text = fmt::format("Initialize or Broadcast with root {}", own.root.value);
      if (other.operation == own.operation && other.type != own.type) {
        text += fmt::format(" and values of type {}", numeric::ToString(own.type));
      }
      return text;
    }
    case RoundOperation::kLoad: return "LoadCheckpoint";
    case RoundOperation::kPool:
    case RoundOperation::kPoolMove: return DescribePooled(own);
    case RoundOperation::kReduce:
    case RoundOperation::kMove: break;
  }
  if (!other.is_known || other.operation != own.operation) return "a gradient";
  const std::string values = DescribeValues(own, other);
  if (!values.empty()) return "a gradient with " + values;
  if (own.version == other.version) return "a gradient with other hyper-parameters";
  const std::uint64_t changes = own.version.value - 1;  // the key is added with version 1
  return fmt::format("a gradient after {} change{} of its hyper-parameters", changes,
                     changes == 1 ? "" : "s");
}

// What to do about rounds of different kinds.
std::string Advice(const ConflictSide& a, const ConflictSide& b) {
  if (a.operation == b.operation || wire::IsPooled(a.operation)) return "";
  if (a.operation == RoundOperation::kLoad || b.operation == RoundOperation::kLoad) {
    return "; every rank must call LoadCheckpoint before its first push";
  }
  return "; every rank must call Initialize or Broadcast for a key, or none";
}

std::string DescribeDecision(const ConflictSide& side) {
  return side.skips ? std::string("to skip it")
                    : fmt::format("to apply it with the gradients scaled by {}", side.scale);
}

}  // namespace

std::string DescribeConflict(FaultCode code, const Conflict& conflict, const std::string& who,
                             const std::string& other) {
  const ConflictSide& a = conflict.source;
  const ConflictSide& b = conflict.other;
  if (code == FaultCode::kHyperParametersMismatch) {
    return fmt::format("every rank must set the same hyper-parameters, but {} set {} and {} set {}",
                       who, DescribeValues(a, b), other, DescribeValues(b, a));
  }
  if (code == FaultCode::kDecisionMismatch) {
    return fmt::format(
        "every rank must make the same clip or skip decision for an iteration, but {} decided {} "
        "and {} decided {}",
        who, DescribeDecision(a), other, DescribeDecision(b));
  }
  if (!b.is_known && wire::IsPooled(a.operation)) {
    return fmt::format("{} repeated a push with other values: {}", who, DescribePooled(a));
  }
  if (!b.is_known) {
    return fmt::format("{} pushed {}, but the job has no such rank", who, DescribeRound(a, b));
  }
  return fmt::format("every rank must push the same round, but {} pushed {} and {} pushed {}{}",
                     who, DescribeRound(a, b), other, DescribeRound(b, a), Advice(a, b));
}

}  // namespace phub::server
