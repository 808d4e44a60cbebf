// What control and a core loop say to each other: commands down, events up, each through a bounded
// SPSC queue. Control builds every object and frees it; a core loop only uses what it was handed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/transport/transport.h"
#include "server/core/lane_owner.h"
#include "server/core/schedule/turn.h"

namespace phub::server {

struct JobShard;         // server/core/job_shard.h: one job's part of one core loop
struct KeyBatch;         // server/core/job_shard.h: keys and chunks to be added to a shard
struct StallReport;      // server/core/job_shard.h: filled by the core loop, read by control
struct VersionReport;    // the same
struct CheckpointImage;  // server/core/job_shard.h: saved state of a shard, on its way out or in

// Control -> core loop. Executed in order; the loop counts them in CoreCounters::commands_done
// (release), which is how control knows that a command is acknowledged.
struct Command {
  enum class Kind : std::uint8_t {
    kNone,
    kAddJob,      // shard
    kAddKeys,     // shard, batch. The batch stays owned by control, for as long as the shard.
    kAttachLane,  // shard, owner, connection (owned by control, alive until the kLaneClosed event),
                  // transport_index; of a worker's lane also staging (slots_per_lane *
                  // chunk_bytes; control's, alive until the lane is closed)
    kRankLeft,    // shard, rank: it left in order; a round that still needs it is a fault
    kReportStalls,    // shard, report: answered by kStallsReported
    kReportVersions,  // shard, versions: answered by kVersionsReported. rank: that asks, or Max()
    kTakeSnapshot,    // shard, image with a target per key: every chunk is copied at its target,
                      // beside the rounds that go on; answered by kSnapshotTaken
    kDropSnapshot,    // shard: forgets the image of kTakeSnapshot; once it is acknowledged nothing
                      // refers to it
    kLoadCheckpoint,  // shard, image (or null: forget it): what rounds of kLoad put in place
    kSetShare,        // shard, share: of its tenant, whose other jobs it concerns as well
    kEndJob,          // shard: lanes are closed; answered by kJobEnded, then nothing refers to it
  };
  Kind kind = Kind::kNone;
  std::uint8_t transport_index = 0;  // which of the core loop's transports
  LaneOwner owner{};
  Rank rank{};
  JobShard* shard = nullptr;
  KeyBatch* batch = nullptr;
  StallReport* report = nullptr;
  VersionReport* versions = nullptr;
  CheckpointImage* image = nullptr;
  transport::Connection* connection = nullptr;
  std::byte* staging = nullptr;
  TenantShare share = {};
};

// Why a job cannot go on. Named so that counters, events and messages use the same word.
enum class FaultCode : std::uint8_t {
  kNone,
  kLaneLost,  // rank's lane closed or failed (policy fail: ends the job)
  kProtocol,  // rank broke the lane's form
  kWrongIncarnation,
  kWrongEpoch,
  kChunkRange,
  kSlotRange,
  kSlotOccupied,
  kPayloadSize,
  kUnexpectedKind,
  kStaleIteration,           // older than the chunk's applied version
  kIterationGap,             // more than one ahead
  kUnknownHyperParameters,   // gradient names a record that was not announced on this lane
  kHyperParametersRange,     // record for an unknown key, or malformed, or too old
  kHyperParametersMismatch,  // two ranks announced different hyper-parameters for one version
  kRoundMismatch,            // two ranks pushed one round with different operation, root or record
  kDepartedRank,             // a round needs a rank that has left the job
  kType,                     // elements of another type than the key's
  kReplyAddress,             // wants its reply in shared memory that is not there
  kAlignment,                // names memory that is not aligned to its elements
  kVersionGone,              // asks for a version that is not kept
  kNoCheckpoint,             // a round of kLoad, and no saved state was brought for its chunk
  kNonFinite,                // screening "reject": a sum is not finite
  kDecision,                 // decided an iteration that is not summed, or in a way that cannot be
  kDecisionMismatch,         // two ranks decided one iteration differently
  kNotInPlan,                // a rack sent what the job's plan does not let it send
};
const char* ToString(FaultCode code);

// Core loop -> control.
struct Event {
  enum class Kind : std::uint8_t {
    kNone,
    kFault,             // shard, code, source, other, key, iteration; at most one per shard.
                        // connection: of a lane that is closed; there until its kLaneClosed
    kLaneClosed,        // shard, source, connection: may be destroyed; error says why
    kStallsReported,    // shard, report
    kVersionsReported,  // shard, versions
    kSnapshotTaken,     // shard, image: whole, or image->missed
    kNonFinite,         // shard, source (nobody: the sum overflowed), key, iteration: the first of
                        // the shard
    kJobEnded,          // shard: control may free it
  };
  Kind kind = Kind::kNone;
  FaultCode code = FaultCode::kNone;
  transport::TransportError error = transport::TransportError::kNone;
  transport::ProtocolError protocol_error = transport::ProtocolError::kNone;
  LaneOwner source{};  // the worker or rack that the event is about
  LaneOwner other{};   // of mismatches and kDepartedRank: whom it disagrees with
  KeyIndex key{};
  Iteration iteration{};
  JobShard* shard = nullptr;
  StallReport* report = nullptr;
  VersionReport* versions = nullptr;
  CheckpointImage* image = nullptr;
  transport::Connection* connection = nullptr;
};

}  // namespace phub::server
