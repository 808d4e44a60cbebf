// The message of the data plane: a 64-byte header and payload_bytes of payload. Little-endian.
//
//   0        2        4                 8                                 16
//   +--------+---+----+-----------------+---------------------------------+
//   | magic  |ver|kind|  payload_bytes  |           incarnation           |
//   +--------+---+----+-----------------+-----------------+---------------+  32
//   |            iteration              | membership_epoch|     chunk     |
//   +-----------------+-----------------+-----------------+---------------+  48
//   |      slot       |  record         |       key       |     root      |
//   +--+--------------+-----------------+-----------------+---------------+  64
//   |op|ty|fl|re|  mover or zero        |     reply_address or value      |
//   +--+--+--+--+---------------------------------------------------------+
//
// In gradients of kPool and kPoolMove, bytes 36 to 43 (record and key) are the round's elements,
// bytes 44 to 47 (root) its sequence number. `re` is the reduction of kPool, `mover` the root of
// kPoolMove. In all other messages these two are zero.
//
// A sender that sets a reserved byte uses another version of the protocol.
//
// Decoding checks the form (magic, version, kind, reserved bytes, operation). The lane's owner
// checks the meaning: whether a slot, chunk or iteration is valid. Pure functions, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/element_type.h"
#include "common/base/ids.h"
#include "common/base/reduction.h"
#include "common/optimizer/hyper_parameters.h"

namespace phub::wire {

inline constexpr std::uint16_t kMessageMagic = 0x4850;  // "PH" in memory
inline constexpr std::uint8_t kLaneVersion = 6;         // the version of this build
inline constexpr std::uint8_t kLaneVersionMin = 1;      // the oldest supported (N-1 from N=2 on)
// Since this version both ends of a lane send keep-alives. A peer of an older version sends none.
inline constexpr std::uint8_t kKeepAliveVersion = 2;
// Since this version there are rounds of kMove, whose gradients without payload need no slot.
inline constexpr std::uint8_t kMoveVersion = 3;
// Since this version there are rounds of kPool.
inline constexpr std::uint8_t kPoolVersion = 4;
// Since this version there are messages of streams of sums (common/aggregation/worker_stream.h).
inline constexpr std::uint8_t kStreamVersion = 5;
// Since this version there are rounds of kPoolMove.
inline constexpr std::uint8_t kPoolMoveVersion = 6;
inline constexpr std::size_t kHeaderBytes = 64;
// Payloads of kHyperParameters and of streams are inline: delivered together with the header, not
// into a slot.
inline constexpr std::size_t kInlineBytesMax = 96;

enum class MessageKind : std::uint8_t {
  kGradient = 1,    // worker -> server. The payload goes into staging slot `slot`; with kNoSlot the
                    // daemon reads it in place from shared memory. Refers to `hyper_version`.
  kParameters = 2,  // server -> worker. The chunk's version `iteration`; `slot` is the chunk index.
                    // Without payload for a rank that does not receive the chunk (KeyMovement).
  kCredit = 3,      // server -> worker. Staging slot `slot` (it held `chunk`) may be used again.
  kHyperParameters = 4,  // worker -> server. Version `hyper_version` of the hyper-parameters of
                         // `key`, inline payload.
  kPull = 5,  // worker -> server. Asks for the chunk's version `iteration`, without a push.
              // Iteration::Max() asks for the current version. The answer is kParameters.
  // Only in jobs with apply=iteration:
  kSummed = 6,    // server -> worker. The chunk's gradients of round `iteration` are summed and
                  // its staging slot is free. `value`: the squared norm of the sum.
  kDecision = 7,  // worker -> server. Every chunk of the job is summed; this core loop must apply
                  // its sums, scaled by `value`. `iteration`: the decision's number, from 1.
  // Both directions, since kKeepAliveVersion:
  kKeepAlive = 8,  // The sender is alive. The receiver ignores the other fields.
  // Only in jobs whose sums an aggregator computes, since kStreamVersion:
  kAnnounce = 9,   // worker -> server. The chunk's gradient of round `iteration` is ready for the
                   // stream whose lease is `slot`. As a kGradient, without its payload; inline
                   // payload: the exponents of its blocks (common/aggregation/fixed_point.h).
  kStreamIs = 10,  // server -> worker. The lane's present stream. Inline payload: its terms
                   // (common/aggregation/stream_terms.h); without payload, no stream is open.
  kAssign = 11,    // server -> worker. The round has position `value` in the stream whose lease is
                   // `slot`. Inline payload: the greatest exponents of all ranks.
  kUseTcp = 12,    // server -> worker. Push the chunk's gradient of round `iteration`.
  kMissing = 13,   // worker -> server. Send these blocks of the chunk's version `iteration` again.
                   // Inline payload: a bit for each block (common/aggregation/parameter_blocks.h).
                   // Without payload: send it over this lane. The answer is a kUseTcp, if the round
                   // is complete: the push is a duplicate, and gets the version.
};

// What a round does with the payloads that the ranks push. All ranks of a round must agree.
enum class RoundOperation : std::uint8_t {
  kReduce = 0,  // sum or mean, then the key's optimizer
  kAssign = 1,  // the payload of rank `root` becomes the parameters; other ranks push 0 bytes
  kLoad = 2,    // a checkpoint's state, sent by control, replaces the chunk's; ranks push 0 bytes
  // The payload of the chunk's only sender, rank `root`, becomes the parameters, byte by byte;
  // other ranks push 0 bytes. Only for keys that move bytes (KeyMovement). Since kMoveVersion.
  kMove = 3,
  // Only for pooled keys: the reduction, the elements' type and their number are the round's, not
  // the key's (PoolRound). Since kPoolVersion.
  kPool = 4,
  // Only for pooled keys: the payload of rank `root` becomes the result of all other ranks, byte by
  // byte. They push 0 bytes, and the root gets none. Since kPoolMoveVersion.
  kPoolMove = 5,
};

// A round of a pooled key.
constexpr bool IsPooled(RoundOperation operation) {
  return operation == RoundOperation::kPool || operation == RoundOperation::kPoolMove;
}

// Such a round is an iteration of its key: it counts as a reduction.
constexpr bool IsIteration(RoundOperation operation) {
  return operation == RoundOperation::kReduce || operation == RoundOperation::kMove ||
         IsPooled(operation);
}
// One rank's payload becomes the parameters.
constexpr bool HasRoot(RoundOperation operation) {
  return operation == RoundOperation::kAssign || operation == RoundOperation::kMove ||
         operation == RoundOperation::kPoolMove;
}

// Flags of a message. FlagsOf() returns the flags that a kind allows.
inline constexpr std::uint8_t kFlagSkip = 1;       // kGradient, kSummed: a rank asks to skip the
                                                   // iteration; kDecision: the iteration is skipped
inline constexpr std::uint8_t kFlagNonFinite = 2;  // kSummed: the sum contains NaN or an infinity
std::uint8_t FlagsOf(MessageKind kind);

// What a gradient of kPool or kPoolMove says about its round, with the type of its payload. All
// ranks of the round must agree. The round covers the first chunks of its key.
struct PoolRound {
  std::uint64_t elements = 0;  // the whole round has so many, at least 1
  // The number of the pool's operation, modulo 2^24, and above it (8 bits) how many rounds of the
  // operation follow: an operation that does not fit into a round takes several.
  std::uint32_t sequence = 0;
  numeric::Reduction reduction = numeric::Reduction::kSum;  // of kPool
  friend bool operator==(const PoolRound&, const PoolRound&) = default;
};
inline constexpr unsigned kPoolSequenceBits = 24;
inline constexpr std::uint32_t kPoolSequenceMask = (1u << kPoolSequenceBits) - 1;
inline constexpr std::uint32_t kPoolRoundsLeftMax = 255;  // or more

struct MessageHeader {
  std::uint8_t version = kLaneVersionMin;  // the oldest lane version that has this message
  MessageKind kind{};
  RoundOperation operation = RoundOperation::kReduce;
  // The type of the payload's elements. kGradient without payload: the type of the root's elements.
  numeric::ElementType type = numeric::ElementType::kF32;
  std::uint32_t payload_bytes = 0;
  Incarnation incarnation{};
  Iteration iteration{};
  MembershipEpoch membership_epoch{};
  ChunkIndex chunk{};
  SlotIndex slot = kNoSlot;
  HyperVersion hyper_version{};
  KeyIndex key{};
  Rank root{};
  // kGradient, kPull: the address in shared memory where the worker expects the reply's payload.
  // 0: no particular address; over shm the worker may read the payload in place.
  SharedAddress reply_address{};
  std::uint8_t flags = 0;
  // In place of reply_address. kSummed, kDecision: the bits of an f64. kAssign: a position.
  std::uint64_t value_bits = 0;
  PoolRound pool{};  // gradients of pooled keys, in place of hyper_version and key

  friend bool operator==(const MessageHeader&, const MessageHeader&) = default;
};

enum class DecodeError : std::uint8_t {
  kNone,
  kTruncated,  // fewer than kHeaderBytes
  kMagic,      // not a phub lane, or not at the start of a message
  kVersion,    // outside [kLaneVersionMin, kLaneVersion]
  kKind,
  kOperation,
  kType,          // not an element type
  kReserved,      // reserved bytes not zero, or a flag that the kind does not allow
  kPayloadBytes,  // over kChunkBytesMax (inline: kInlineBytesMax; kinds without payload: 0)
};
const char* ToString(DecodeError error);

void EncodeHeader(const MessageHeader& header, std::span<std::byte, kHeaderBytes> bytes);
[[nodiscard]] DecodeError DecodeHeader(std::span<const std::byte> bytes, MessageHeader& header);

// The payload of kHyperParameters: the struct's doubles in order, 96 bytes on the wire.
using optimizer::HyperParameters;
inline constexpr std::size_t kHyperParametersBytes = 96;

void EncodeHyperParameters(const HyperParameters& values,
                           std::span<std::byte, kHyperParametersBytes> bytes);
// False unless there are exactly 96 bytes, every value is finite and reserved fields are zero.
[[nodiscard]] bool DecodeHyperParameters(std::span<const std::byte> bytes, HyperParameters& values);

}  // namespace phub::wire
