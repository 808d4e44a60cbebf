// First stage: validates a message from a worker's lane and decides what to do with it. Changes
// only the versions of hyper-parameters. An invalid message is a fault of its rank, never a CHECK.
// Core loop's thread.
#pragma once

#include "server/core/job_shard.h"

namespace phub::server::ingest {

// For a push, where T is the chunk's applied iteration (design: "exactly once"):
//   T+1, new                 -> kStage
//   T+1, staged or folded    -> kDuplicate: credit its slot; the round's reply answers it
//   T                        -> kAnswer: already applied; reply with the current version
//   older / more than T+1    -> fault kStaleIteration / kIterationGap
// For a kAnnounce the same, but T+1 -> kAnnounce, T -> kSendAgain.
// For a kMissing: T -> kSendAgain, T+1, which is not applied yet -> kNothing.
// For a kPull, which asks for a version without a push: T -> kAnswer, T-1 -> kAnswerPrevious.
// For a kDecision, where n is the number of decisions so far: n+1 -> kDecide, n -> kNothing.
enum class Action : std::uint8_t {
  kStage,
  kAnnounce,
  kSendAgain,  // the present version, as datagrams
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
  Rank other{};            // for mismatches: the rank that the sender contradicts
  Chunk* chunk = nullptr;  // the message's chunk, if it has a valid one
  KeyIndex key{};          // for the description of a fault
};

Verdict Judge(JobShard& shard, Rank rank, const transport::ReceivedMessage& message);
// If the fault is that ranks disagree, records what both sent. Call it before the fault is
// reported.
void NoteConflict(JobShard& shard, const Verdict& verdict,
                  const transport::ReceivedMessage& message);

}  // namespace phub::server::ingest
