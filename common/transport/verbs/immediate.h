// The 32 bits that arrive with every message of a verbs lane. Pure; any thread.
//
//   kind (2 bits)  30 bits
//   kSlot          the staging slot that now contains header and payload of a gradient
//   kReply         chunk (20 bits), type (3), iteration modulo 2^7 (7): the worker's parameters now
//                  contain the payload of a reply. There is no room for a header, but the worker
//                  knows its own request, and these bits identify the reply.
//   kInbox         1 bit: only the header is here, the payload is in the worker's parameters.
//                  1 bit: it is a VerbsControl. 28 bits: place in the inbox, in units of 64 bytes
//   kTaken         total messages and inbox units that the sender of this has read, each modulo
//                  2^15
#pragma once

#include <cstdint>

#include "common/base/element_type.h"
#include "common/base/ids.h"

namespace phub::transport {

enum class ImmediateKind : std::uint32_t { kSlot = 0, kReply = 1, kInbox = 2, kTaken = 3 };

inline constexpr std::uint32_t kInboxUnitBytes = 64;
inline constexpr std::uint32_t kTakenBits = 15;
inline constexpr std::uint32_t kTakenMask = (1u << kTakenBits) - 1;
inline constexpr std::uint32_t kReplyIterationMask = (1u << 7) - 1;

inline constexpr unsigned kImmediateKindShift = 30;
inline constexpr unsigned kReplyChunkShift = 10;
inline constexpr unsigned kReplyTypeShift = 7;
static_assert(kChunksPerShardMax <= 1u << (kImmediateKindShift - kReplyChunkShift));
static_assert(numeric::kElementTypeMax < 1u << (kReplyChunkShift - kReplyTypeShift));
static_assert(2 * kTakenBits == kImmediateKindShift);

struct ReplyImmediate {
  ChunkIndex chunk{};
  std::uint32_t type = 0;       // ElementType, unchecked
  std::uint32_t iteration = 0;  // modulo 2^7
};
struct InboxImmediate {
  bool placed = false;
  bool control = false;
  std::uint32_t unit = 0;
};
struct TakenImmediate {
  std::uint32_t messages = 0;  // modulo 2^15
  std::uint32_t units = 0;
};

constexpr ImmediateKind KindOf(std::uint32_t immediate) {
  return static_cast<ImmediateKind>(immediate >> kImmediateKindShift);
}
constexpr std::uint32_t PackImmediate(ImmediateKind kind, std::uint32_t value) {
  return static_cast<std::uint32_t>(kind) << kImmediateKindShift | value;
}
constexpr std::uint32_t ValueOf(std::uint32_t immediate) {
  return immediate & ((1u << kImmediateKindShift) - 1);
}

constexpr std::uint32_t PackSlot(SlotIndex slot) {
  return PackImmediate(ImmediateKind::kSlot, slot.value);
}

constexpr std::uint32_t PackReply(ChunkIndex chunk, numeric::ElementType type,
                                  Iteration iteration) {
  return PackImmediate(ImmediateKind::kReply,
                       chunk.value << kReplyChunkShift |
                           static_cast<std::uint32_t>(type) << kReplyTypeShift |
                           (static_cast<std::uint32_t>(iteration.value) & kReplyIterationMask));
}
constexpr ReplyImmediate UnpackReply(std::uint32_t immediate) {
  const std::uint32_t value = ValueOf(immediate);
  return {.chunk = {value >> kReplyChunkShift},
          .type = value >> kReplyTypeShift & ((1u << (kReplyChunkShift - kReplyTypeShift)) - 1),
          .iteration = value & kReplyIterationMask};
}

inline constexpr unsigned kInboxPlacedShift = 29;
inline constexpr unsigned kInboxControlShift = 28;
constexpr std::uint32_t PackInbox(const InboxImmediate& inbox) {
  return PackImmediate(ImmediateKind::kInbox, (inbox.placed ? 1u : 0u) << kInboxPlacedShift |
                                                  (inbox.control ? 1u : 0u) << kInboxControlShift |
                                                  inbox.unit);
}
constexpr InboxImmediate UnpackInbox(std::uint32_t immediate) {
  const std::uint32_t value = ValueOf(immediate);
  return {.placed = (value >> kInboxPlacedShift & 1) != 0,
          .control = (value >> kInboxControlShift & 1) != 0,
          .unit = value & ((1u << kInboxControlShift) - 1)};
}

constexpr std::uint32_t PackTaken(std::uint64_t messages, std::uint64_t units) {
  return PackImmediate(ImmediateKind::kTaken, (static_cast<std::uint32_t>(messages) & kTakenMask)
                                                      << kTakenBits |
                                                  (static_cast<std::uint32_t>(units) & kTakenMask));
}
constexpr TakenImmediate UnpackTaken(std::uint32_t immediate) {
  const std::uint32_t value = ValueOf(immediate);
  return {.messages = value >> kTakenBits, .units = value & kTakenMask};
}

}  // namespace phub::transport
