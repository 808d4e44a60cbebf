// The data plane's message: a 64-byte header, then payload_bytes of payload. Little-endian.
//
//   0        2        4                 8                                 16
//   +--------+---+----+-----------------+---------------------------------+
//   | magic  |ver|kind|  payload_bytes  |           incarnation           |
//   +--------+---+----+-----------------+-----------------+---------------+  32
//   |            iteration              | membership_epoch|     chunk     |
//   +-----------------+-----------------+-----------------+---------------+  48
//   |      slot       |  record         |       key       |     root      |
//   +--+--------------+-----------------+-----------------+---------------+  64
//   |op|ty|fl|     zero (5 bytes)       |     reply_address or value      |
//   +--+--+--+------------------------------------------------------------+
//
// A sender that sets a reserved byte speaks another version.
//
// Decoding checks form (magic, version, kind, reserved bytes, operation), not meaning: whether a
// slot, chunk or iteration makes sense is for whoever owns the lane. Pure functions, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/element_type.h"
#include "common/base/ids.h"
#include "common/optimizer/hyper_parameters.h"

namespace phub::wire {

inline constexpr std::uint16_t kMessageMagic = 0x4850;  // "PH" in memory
inline constexpr std::uint8_t kLaneVersion = 1;         // spoken by this build
inline constexpr std::uint8_t kLaneVersionMin = 1;      // oldest still understood (N-1 from N=2 on)
inline constexpr std::size_t kHeaderBytes = 64;
// Payloads of kHyperParameters travel inline: delivered beside the header, not into a landing slot.
inline constexpr std::size_t kInlineBytesMax = 96;

enum class MessageKind : std::uint8_t {
  kGradient = 1,    // worker -> server. Payload into staging slot `slot`, or kNoSlot if it is read
                    // where it lies, in shared memory. Names `hyper_version`.
  kParameters = 2,  // server -> worker. The chunk's version `iteration`; `slot` is the chunk index.
  kCredit = 3,      // server -> worker. Staging slot `slot` (it held `chunk`) may be used again.
  kHyperParameters = 4,  // worker -> server. Version `hyper_version` of the hyper-parameters of
                         // `key`, inline payload.
  kPull = 5,  // worker -> server. Asks for the chunk's version `iteration`, without a push;
              // Iteration::Max(): whichever is current. Answered by kParameters.
  // Of jobs with apply=iteration:
  kSummed = 6,    // server -> worker. The chunk's gradients of round `iteration` are summed, and
                  // its staging slot is free. `value`: the squared norm of what they make.
  kDecision = 7,  // worker -> server. Every chunk of the job is summed: what this core loop has
                  // is to be applied, times `value`. `iteration`: how many decisions this makes.
};

// What a round does with what the ranks push. All ranks of a round must agree.
enum class RoundOperation : std::uint8_t {
  kReduce = 0,  // sum or mean, then the key's optimizer
  kAssign = 1,  // the payload of rank `root` becomes the parameters; other ranks push 0 bytes
  kLoad = 2,    // saved state, brought by control, becomes the chunk's; all ranks push 0 bytes
};

// Of one message; which kinds may carry which is FlagsOf's to say.
inline constexpr std::uint8_t kFlagSkip = 1;       // kGradient, kSummed: a rank asks that its
                                                   // iteration changes nothing; kDecision: it does
inline constexpr std::uint8_t kFlagNonFinite = 2;  // kSummed: the sum holds NaN or an infinity
std::uint8_t FlagsOf(MessageKind kind);            // all that it may carry

struct MessageHeader {
  std::uint8_t version = kLaneVersion;
  MessageKind kind{};
  RoundOperation operation = RoundOperation::kReduce;
  // Of the elements that are sent, or (kGradient without payload) that the root sends.
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
  // kGradient, kPull: where in shared memory the worker wants the reply's payload. 0: the reply
  // is put (tcp) or may be read (shm) wherever it lies.
  SharedAddress reply_address{};
  std::uint8_t flags = 0;
  // kSummed, kDecision, which have no reply_address: the bits of an f64.
  std::uint64_t value_bits = 0;

  friend bool operator==(const MessageHeader&, const MessageHeader&) = default;
};

enum class DecodeError : std::uint8_t {
  kNone,
  kTruncated,  // fewer than kHeaderBytes
  kMagic,      // not a phub lane, or out of step
  kVersion,    // outside [kLaneVersionMin, kLaneVersion]
  kKind,
  kOperation,
  kType,          // not an element type
  kReserved,      // reserved bytes not zero, or a flag that the kind has not
  kPayloadBytes,  // over kChunkBytesMax; kHyperParameters: over kInlineBytesMax; header only: not 0
};
const char* ToString(DecodeError error);

void EncodeHeader(const MessageHeader& header, std::span<std::byte, kHeaderBytes> bytes);
[[nodiscard]] DecodeError DecodeHeader(std::span<const std::byte> bytes, MessageHeader& header);

// The payload of kHyperParameters: its doubles in order, 96 bytes on the wire.
using optimizer::HyperParameters;
inline constexpr std::size_t kHyperParametersBytes = 96;

void EncodeHyperParameters(const HyperParameters& values,
                           std::span<std::byte, kHyperParametersBytes> bytes);
// False unless exactly 96 bytes, all finite, reserved fields zero.
[[nodiscard]] bool DecodeHyperParameters(std::span<const std::byte> bytes, HyperParameters& values);

}  // namespace phub::wire
