// What callers and the engine say to each other: commands down, through a bounded queue; events up,
// through two small listeners that the engine's thread calls. Nothing here locks or blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/layout.h"
#include "common/base/ids.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"

namespace phub::client {

// Hears of the rounds of one key. Called on the engine's thread: short, and without waiting.
class RoundListener {
 public:
  virtual ~RoundListener() = default;
  // The round's parameters have arrived whole; its memory is the caller's again. skipped: they are
  // the ones from before (apply=iteration).
  virtual void OnRoundComplete(std::uint64_t ticket, Iteration iteration, bool skipped) = 0;
  // Answers kCancel. withdrawn: the round never happened, its memory is the caller's again.
  virtual void OnCancelAnswered(std::uint64_t ticket, bool withdrawn) = 0;
};

// A key as the engine needs it. Owned by the submitter; the engine only reads it, while it executes
// kAddKeys.
struct KeyPlan {
  KeyLayout layout;
  numeric::ElementType type = numeric::ElementType::kF32;
  numeric::ElementType gradient_type = numeric::ElementType::kF32;
  numeric::ElementType parameter_type = numeric::ElementType::kF32;
  std::uint64_t first_iteration = 0;         // the job's iteration when the key was added
  std::int32_t priority = 0;                 // higher first; ties go to the key added first
  wire::HyperParameters hyper_parameters{};  // version 1, which both sides know
  RoundListener* listener = nullptr;         // outlives the engine
};
struct KeyBatch {
  std::vector<KeyPlan> keys;
};

struct Command {
  enum class Kind : std::uint8_t {
    kNone,
    kAttachLane,          // lane, transport_index, connection (the submitter's, alive until
                          // OnLaneClosed). For a lane that is not attached: the first time, or to
                          // replace one that was closed; then every chunk without a reply is sent
                          // again.
    kAddKeys,             // batch
    kPush,                // key, ticket, operation, root, payload_type, gradients, parameters; of
                          // kLoad also reductions and first_iteration. At most one round per key:
                          // REQUIRES that the last one was completed or withdrawn. With
                          // EngineConfig::restart a reduction is held back until every key has
                          // completed the iteration before.
    kResume,              // key, ticket, version, reductions, first_iteration, record,
                          // hyper_parameters, parameters: a new process in the place of one that
                          // died. Pulls that version of every chunk, then reports as for a push;
                          // the next push is version + 1. REQUIRES that the key was never pushed.
    kSetHyperParameters,  // key, hyper_parameters: from the next push on
    kCancel,              // key, ticket
    kStop,                // closes every lane; OnStopped follows, and no memory is touched after it
  };
  Kind kind = Kind::kNone;
  wire::RoundOperation operation = wire::RoundOperation::kReduce;
  std::uint8_t transport_index = 0;
  std::uint32_t lane = 0;
  KeyIndex key{};
  Rank root{};
  numeric::ElementType payload_type = numeric::ElementType::kF32;  // of what the root sends
  std::uint64_t ticket = 0;  // the caller's name for the round
  Iteration version{};       // kResume
  // kResume: how many of the rounds up to `version` were reductions. kLoad: of the saved state.
  std::uint64_t reductions = 0;
  std::uint64_t first_iteration = 0;  // kResume, kLoad: the job's iteration, less `reductions`
  HyperVersion hyper_version{};       // kResume; 0: no round has named one yet
  const std::byte* gradients =
      nullptr;  // null: this rank pushes no payload (kAssign, not the root)
  std::byte* parameters = nullptr;
  bool parameters_shared = false;  // they are the shared parameters: nothing is to be written there
  bool skip = false;               // kPush: asks that the iteration be skipped
  const KeyBatch* batch = nullptr;
  transport::Connection* connection = nullptr;
  wire::HyperParameters hyper_parameters{};
};

// How the daemon broke the lane's rules, where the transport could not see it.
enum class LaneFault : std::uint8_t {
  kNone,
  kUnexpectedKind,  // a message that only workers send
  kWrongJob,        // another incarnation or membership epoch
  kChunkRange,      // a chunk that this lane does not have
  kSlotRange,       // a staging slot that this lane does not have
  kNotAsked,        // a reply to a chunk that is not under way
  kIteration,       // a reply of another iteration than the one under way
  kType,            // a reply in elements of another type than the key's parameters
  kPayloadBytes,    // a reply of another size than the chunk's
  kNotDecided,      // a reply to a chunk of an iteration that this worker has not decided
};
const char* ToString(LaneFault fault);

struct LaneClosed {
  std::uint32_t lane = 0;
  LaneFault fault = LaneFault::kNone;  // not kNone: the engine closed the lane because of it
  transport::TransportError error = transport::TransportError::kNone;
  transport::ProtocolError protocol_error = transport::ProtocolError::kNone;
  ChunkIndex chunk{};  // with a fault: what the message named
  Iteration iteration{};
  transport::Connection* connection = nullptr;  // may be destroyed now
};

// Hears of the lanes. Called on the engine's thread: short, and without waiting.
class EngineListener {
 public:
  virtual ~EngineListener() = default;
  virtual void OnLaneClosed(const LaneClosed& closed) = 0;
  virtual void OnStopped() = 0;
};

}  // namespace phub::client
