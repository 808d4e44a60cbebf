// Messages between control and a core loop: commands from control, events from the loop, each
// through a bounded SPSC queue. Control creates and frees every object; a core loop only uses the
// objects in its commands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/transport/transport.h"
#include "server/core/lane_owner.h"
#include "server/core/schedule/turn.h"

struct phub_lease;  // common/aggregation/packet.h

namespace phub::server {

struct JobShard;         // server/core/job_shard.h: one job's part of one core loop
struct KeyBatch;         // server/core/job_shard.h: keys and chunks to be added to a shard
struct StallReport;      // server/core/job_shard.h: filled by the core loop, read by control
struct VersionReport;    // the same
struct RoundTrace;       // server/core/round_trace.h
struct KeyRemoval;       // server/core/key_removal.h
struct CheckpointImage;  // server/core/checkpoint_image.h: a snapshot or loaded checkpoint of a
                         // shard

// Control -> core loop. Executed in order. The loop counts them in CoreCounters::commands_done
// (release), which acknowledges them to control.
struct Command {
  enum class Kind : std::uint8_t {
    kNone,
    kAddJob,      // shard
    kAddKeys,     // shard, batch (owned by control, valid as long as the shard has the keys)
    kRemoveKeys,  // shard, removal (owned by control, valid until the event or the job's end):
                  // answered by kKeysRemoved. REQUIRES: the keys are collective; no image of the
                  // shard was made whose command has not been executed
    kAttachLane,  // shard, owner, connection (owned by control, valid until the kLaneClosed event),
                  // transport_index. For a worker's lane also staging (slots_per_lane *
                  // chunk_bytes, owned by control, valid until the lane is closed)
    kRankLeft,    // shard, rank: it left normally; a round that still needs it is a fault
    kReportStalls,    // shard, report: answered by kStallsReported
    kReportVersions,  // shard, versions, rank (the rank that asks, or Max()): answered by
                      // kVersionsReported
    kTakeSnapshot,    // shard, image with a target per key: copies every chunk at its target while
                      // rounds continue; answered by kSnapshotTaken
    kDropSnapshot,    // shard: drops the image of kTakeSnapshot; once this is acknowledged the loop
                      // does not refer to the image
    kLoadCheckpoint,  // shard, image: rounds of kLoad put it in place; null: drops the last one
    kTraceRounds,     // shard, trace: records rounds there; null: stops. Once this is acknowledged
                      // the loop does not refer to the trace before
    kSetShare,        // shard, share: applies to all jobs of the shard's tenant
    kOpenStream,      // shard, lease (owned by control, valid until this is acknowledged): its
                      // sums arrive at the port of shard->sums. REQUIRES: it has no open stream
    kCloseStream,     // shard: what the stream has not summed is pushed over tcp
    kEndJob,          // shard: closes its lanes; answered by kJobEnded, after which the loop does
                      // not refer to the shard
  };
  Kind kind = Kind::kNone;
  std::uint8_t transport_index = 0;  // which of the core loop's transports
  LaneOwner owner{};
  Rank rank{};
  JobShard* shard = nullptr;
  KeyBatch* batch = nullptr;
  const KeyRemoval* removal = nullptr;
  StallReport* report = nullptr;
  VersionReport* versions = nullptr;
  CheckpointImage* image = nullptr;
  RoundTrace* trace = nullptr;
  transport::Connection* connection = nullptr;
  std::byte* staging = nullptr;
  TenantShare share = {};
  const phub_lease* lease = nullptr;
};

// Why a job cannot continue. Counters, events and messages use these names.
enum class FaultCode : std::uint8_t {
  kNone,
  kLaneLost,  // rank's lane closed or failed (policy fail: ends the job)
  kProtocol,  // rank sent malformed data on its lane
  kWrongIncarnation,
  kWrongEpoch,
  kChunkRange,
  kSlotRange,
  kSlotOccupied,
  kPayloadSize,
  kUnexpectedKind,
  kStaleIteration,           // older than the chunk's applied version
  kIterationGap,             // more than one ahead of the chunk's applied version
  kUnknownHyperParameters,   // gradient names a version that was not announced, or is too old
  kHyperParametersRange,     // record for an unknown key, or malformed, or too old
  kHyperParametersMismatch,  // two ranks announced different hyper-parameters for one version
  kRoundMismatch,            // two ranks pushed one round with different operation, root or record
  kDepartedRank,             // a round needs a rank that has left the job
  kType,                     // elements have another type than the key's
  kReplyAddress,             // the reply address is not in the rank's shared memory, or misaligned
  kAlignment,                // the payload is not aligned to its elements
  kEncoding,                 // the payload is not valid in the encoding of the key's gradients
  kVersionGone,              // the requested version is not kept
  kNoCheckpoint,             // a round of kLoad, but no checkpoint was loaded for its chunk
  kNonFinite,                // screening "reject": a sum is not finite
  kDecision,                 // decision about an iteration that is not summed, or an invalid one
  kDecisionMismatch,         // two ranks decided differently about one iteration
  kNotInPlan,                // a rack sent a message that the job's plan does not allow
  kNotMember,                // rank pushed a key of a group that it is not a member of
  kKeyInUse,                 // rank uses a key, or its memory, that every rank asked to remove
};
const char* ToString(FaultCode code);

// The most events of one core loop that control has not taken yet. Control keeps to them
// (core_link.h), so that a core loop always has room for an event, however long control takes.
// Lanes that are attached, or closed without control knowing it: each has one event left.
inline constexpr std::size_t kLanesUnreportedMax = 65536;
inline constexpr std::size_t kReportsUntakenMax = 8192;  // kStallsReported, kVersionsReported
// A fault, a sum that is not finite, the end of the job, removed keys, and its snapshot. A second
// snapshot may begin before the event of a dropped one is taken.
inline constexpr std::size_t kEventsPerShardMax = 6;

// Core loop -> control.
struct Event {
  enum class Kind : std::uint8_t {
    kNone,
    kFault,             // shard, code, source, other, key, iteration; at most one per shard.
                        // connection: the lost lane's, valid until its kLaneClosed event
    kLaneClosed,        // shard, source, connection (control may destroy it), error: the reason
    kStallsReported,    // shard, report
    kVersionsReported,  // shard, versions
    kSnapshotTaken,     // shard, image: complete, or image->missed
    kNonFinite,         // shard, source (nobody if the sum overflowed), key, iteration; only for
                        // the first such sum of the shard
    kKeysRemoved,       // shard, removal: the loop and its transports do not refer to the keys
    kJobEnded,          // shard: control may free it
  };
  Kind kind = Kind::kNone;
  FaultCode code = FaultCode::kNone;
  transport::TransportError error = transport::TransportError::kNone;
  transport::ProtocolError protocol_error = transport::ProtocolError::kNone;
  bool refused = false;  // with error: the transport could not serve the new lane (shortage)
  LaneOwner source{};    // the worker or rack that the event is about
  LaneOwner other{};     // for mismatches and kDepartedRank: the rank or rack it conflicts with
  KeyIndex key{};
  Iteration iteration{};
  JobShard* shard = nullptr;
  const KeyRemoval* removal = nullptr;
  StallReport* report = nullptr;
  VersionReport* versions = nullptr;
  CheckpointImage* image = nullptr;
  transport::Connection* connection = nullptr;
};

}  // namespace phub::server
