// First stage: what a message that arrived on a lane means. Decides, changes nothing but the
// versions of hyper-parameters. Everything here judges what a peer sent: wrong is a fault of that
// rank, never a CHECK. Core loop's thread.
#pragma once

#include "server/core/job_shard.h"

namespace phub::server::ingest {

// Per (chunk, rank), with T the chunk's applied iteration (design: "exactly once"):
//   T+1, new                 -> kStage
//   T+1, staged or folded    -> kDuplicate: credit its slot, it is answered with the round
//   T                        -> kAnswer: already applied, reply with the current version
//   older / more than T+1    -> fault kStaleIteration / kIterationGap
// kPull asks for a version without a push: T -> kAnswer, T-1 where it is kept -> kAnswerPrevious.
// kDecision, with n the decisions that the shard has made: n+1 -> kDecide, n -> kNothing.
enum class Action : std::uint8_t {
  kStage,
  kDuplicate,
  kAnswer,
  kAnswerPrevious,
  kRecord,
  kDecide,
  kNothing,
  kFault
};

struct Verdict {
  Action action = Action::kFault;
  FaultCode fault = FaultCode::kNone;
  Rank other{};            // the rank that the sender disagrees with, for mismatches
  Chunk* chunk = nullptr;  // of a chunk's messages; of faults, where a chunk is known
  KeyIndex key{};          // for naming the fault
};

Verdict Judge(JobShard& shard, Rank rank, const transport::ReceivedMessage& message);

}  // namespace phub::server::ingest
