// Messages between callers and the engine: commands through a bounded queue, and events through two
// small listeners that the engine's thread calls. Nothing here locks or blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/layout.h"
#include "common/base/clock.h"
#include "common/base/encoding.h"
#include "common/base/ids.h"
#include "common/base/priority_levels.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"

namespace phub::client {

// Receives the events of one key's rounds. Called on the engine's thread: must be short and must
// not block.
class RoundListener {
 public:
  virtual ~RoundListener() = default;
  // With EngineConfig::report_sent: the first chunk of the round was given to a transport, or, with
  // `all`, the last one. Not repeated if chunks are sent again.
  virtual void OnSent(bool /*all*/) {}
  // All parameters of the round have arrived; the engine no longer uses the round's memory.
  // skipped: the parameters did not change (apply=iteration).
  virtual void OnRoundComplete(std::uint64_t ticket, Iteration iteration, bool skipped) = 0;
  // Answers kCancel. withdrawn: nothing was sent; the engine no longer uses the round's memory.
  virtual void OnCancelAnswered(std::uint64_t ticket, bool withdrawn) = 0;
  // Answers kRemoveKeys: the engine does not use the key, its memory and this listener any more.
  virtual void OnRemoved() {}
};

// The engine's description of a key. Owned by the submitter. The engine reads it only while it
// executes kAddKeys.
struct KeyPlan {
  KeyLayout layout;
  numeric::ElementType type = numeric::ElementType::kF32;
  numeric::ElementType gradient_type = numeric::ElementType::kF32;
  numeric::ElementType parameter_type = numeric::ElementType::kF32;
  numeric::GradientEncoding encoding = {};   // reductions push payloads of all chunks (encoding.h)
  Rank rank{};                               // this rank
  std::uint64_t first_iteration = 0;         // the job's iteration when the key was added
  std::int32_t priority = 0;                 // higher first; ties go to the key added first
  std::uint8_t level = 0;                    // see kPriorityLevels; before `priority`
  bool collective = false;                   // outside iterations
  bool pooled = false;                       // a pool's: u8, one element for each byte
  wire::HyperParameters hyper_parameters{};  // version 1, which both sides know
  RoundListener* listener = nullptr;         // must outlive the engine
};
struct KeyBatch {
  std::vector<KeyPlan> keys;
};

struct Command {
  enum class Kind : std::uint8_t {
    kNone,
    kAttachLane,          // lane, transport_index, connection (owned by the submitter, alive until
                          // OnLaneClosed). REQUIRES: the lane is detached. After a reconnection,
                          // every chunk without a reply is sent again.
    kAddKeys,             // batch
    kRemoveKeys,          // batch: its keys; without one, key: this key of the whole job and all
                          // later ones. REQUIRES: they are collective, and none has a round; no
                          // command for them follows
    kPush,                // key, ticket, operation, root, payload_type, gradients, parameters; for
                          // kLoad also reductions and first_iteration. REQUIRES: the key's last
                          // round was completed or withdrawn. With EngineConfig::restart a
                          // reduction waits until every key has completed the previous iteration.
    kResume,              // key, ticket, version, reductions, first_iteration, hyper_version,
                          // hyper_parameters, parameters. For a process that replaces a dead one:
                          // pulls that version of every chunk, then reports as for a push. The next
                          // push is version + 1. REQUIRES: the key was never pushed.
    kSetHyperParameters,  // key, hyper_parameters: used from the next push on
    kCancel,              // key, ticket
    kCloseSilentLane,     // lane: the daemon has been silent on it for too long
    kStop,                // closes every lane. After OnStopped the engine uses no memory of callers
  };
  Kind kind = Kind::kNone;
  wire::RoundOperation operation = wire::RoundOperation::kReduce;
  std::uint8_t transport_index = 0;
  std::uint32_t lane = 0;
  KeyIndex key{};
  Rank root{};
  // The type of the gradients, or of the root's values; ranks that push no values give it, too.
  numeric::ElementType payload_type = numeric::ElementType::kF32;
  std::uint64_t ticket = 0;  // identifies the round to the listener
  Iteration version{};       // kResume
  // kResume: number of reductions among the rounds up to `version`. kLoad: the checkpoint's number.
  std::uint64_t reductions = 0;
  std::uint64_t first_iteration = 0;  // kResume, kLoad: the job's iteration minus `reductions`
  HyperVersion hyper_version{};       // kResume; 0: no round has named one yet
  // The parts of the key that this rank sends. Null: no payload (kAssign and kPoolMove, not the
  // root; or none).
  const std::byte* gradients = nullptr;
  std::byte* parameters = nullptr;  // the parts that it receives; null: none
  bool parameters_shared = false;   // `parameters` are the shared ones: read-only
  wire::PoolRound pool{};           // kPush of pooled keys
  bool skip = false;                // kPush: requests that the iteration be skipped
  const KeyBatch* batch = nullptr;
  transport::Connection* connection = nullptr;
  wire::HyperParameters hyper_parameters{};
};

// A violation of the lane protocol by the daemon that the transport cannot detect.
enum class LaneFault : std::uint8_t {
  kNone,
  kUnexpectedKind,  // a message that only workers send
  kWrongJob,        // another incarnation or membership epoch
  kChunkRange,      // a chunk that this lane does not have
  kSlotRange,       // a staging slot that this lane does not have
  kNotAsked,        // a reply for a chunk that is not in flight
  kIteration,       // a reply for another iteration than the one in flight
  kType,            // a reply with another element type than the key's parameters
  kPayloadBytes,    // a reply with another size than the chunk's
  kStream,          // terms of a stream of sums, or a position, that do not fit the job
  kNotDecided,      // a reply for a chunk of an iteration that this worker has not decided
};
const char* ToString(LaneFault fault);

struct LaneClosed {
  std::uint32_t lane = 0;
  LaneFault fault = LaneFault::kNone;  // not kNone: the reason why the engine closed the lane
  transport::TransportError error = transport::TransportError::kNone;
  transport::ProtocolError protocol_error = transport::ProtocolError::kNone;
  int shortage = 0;        // not 0: this process could not watch the lane; the call's errno
  DurationNs silence = 0;  // not 0: closed because the daemon was silent for that long
  ChunkIndex chunk{};      // with a fault: chunk and iteration in the message
  Iteration iteration{};
  transport::Connection* connection = nullptr;  // may be destroyed now
};

// Receives the events of lanes. Called on the engine's thread: must be short and must not block.
class EngineListener {
 public:
  virtual ~EngineListener() = default;
  virtual void OnLaneClosed(const LaneClosed& closed) = 0;
  virtual void OnStopped() = 0;
};

}  // namespace phub::client
