// The windows of the lanes to peer racks: which message may be posted now.
//
// A lane sends messages in the order in which they were posted, and all lanes of a core loop share
// the host's link. So a message delays those that are posted after it, on its lane and on others.
// While the chunks that a job exchanges have several priority classes:
//   - The highest class may have kPeerBytesMax posted and not sent on a lane.
//   - A message of a lower class is posted only if no message of a higher class waits or is unsent
//     on any lane, if no higher class is busy (class_activity.h), and if little is posted on its
//     lane (kYieldingBytes) and of lower classes on all lanes (YieldingBytesMax).
//   - A lower class that waits is due once higher classes have posted, or received, kOvertakesMax
//     times the bytes of its message. Then one message is posted although a higher class is unsent
//     or busy.
// Messages that may not be posted wait in a ring for each lane and class. Lanes take turns.
//
// No deadlock. A message that is posted is always sent: its peer reads lanes to racks at any time,
// and has landing memory of its own for it. So "unsent" ends for every class, and no class holds
// anything that another one needs. "Busy" ends if nothing moves.
//
// While all chunks have one class, messages are posted until the lane's queue is full. Core loop's
// thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/wire/message.h"
#include "server/core/exchange/shard_exchange.h"

namespace phub::server::exchange {

// A lane with so many bytes of lower classes gets no more. Less than a chunk of the usual size
// (128 KiB), so one of these is posted, and several small ones.
inline constexpr std::uint64_t kYieldingBytes = 96 * 1024;
// Two writes of the kernel (kGatherBytes). A message that is due waits for these at most.
inline constexpr std::uint64_t kPeerBytesMax = 2 * 1024 * 1024;

// The same for all lanes together. Enough to keep the host's link busy if two lanes stall.
inline std::uint64_t YieldingBytesMax(std::uint32_t lanes) {
  return std::max(lanes / 4, 3u) * kYieldingBytes;
}

// While there are several classes, the kernel may hold so many bytes that were not sent, of all
// lanes together, because they cannot be overtaken; but on each lane enough for a wake-up's time.
inline constexpr std::uint32_t kUnsentPeerBytesMax = 128 * 1024;
inline constexpr std::uint32_t kUnsentPeerBytesMin = 32 * 1024;
inline std::uint32_t UnsentBytesMax(std::uint32_t lanes) {
  return std::max(kUnsentPeerBytesMax / std::max(lanes, 1u), kUnsentPeerBytesMin);
}

// A message's size, in units: what its kSent must say, so rounded in the same way at both times.
inline constexpr std::uint64_t kUnitBytes = 64;
inline std::uint64_t UnitsOf(std::uint64_t payload_bytes) {
  return (wire::kHeaderBytes + payload_bytes + kUnitBytes - 1) / kUnitBytes;
}

inline bool HigherIsUnsent(const ShardExchange& exchange, std::size_t level) {
  for (std::size_t higher = level + 1; higher < kPriorityLevels; ++higher)
    if (exchange.waiting_at[higher] > 0 || exchange.posted_at[higher] > 0) return true;
  return false;
}

inline bool LowerWaits(const ShardExchange& exchange, std::size_t level) {
  for (std::size_t lower = 0; lower < level; ++lower)
    if (exchange.waiting_at[lower] > 0) return true;
  return false;
}

// In units.
inline std::uint64_t PostedOn(const PeerLane& lane) {
  std::uint64_t posted = 0;
  for (const std::uint64_t at_level : lane.posted_at) posted += at_level;
  return posted;
}
inline std::uint64_t PostedBelowTop(const ShardExchange& exchange) {
  std::uint64_t posted = 0;
  for (std::size_t level = 0; level < exchange.top_level; ++level)
    posted += exchange.posted_at[level];
  return posted;
}

inline bool HasWindow(const ShardExchange& exchange, const PeerLane& lane, std::size_t level,
                      TimeNs now) {
  if (!exchange.has_classes) return true;
  const std::uint64_t bytes = PostedOn(lane) * kUnitBytes;
  if (level == exchange.top_level) return bytes < kPeerBytesMax;
  return bytes < kYieldingBytes && !HigherIsUnsent(exchange, level) &&
         !exchange.activity.IsHigherBusy(level, now) &&
         PostedBelowTop(exchange) * kUnitBytes < YieldingBytesMax(exchange.lanes_open);
}

// Whether a message of that size and level, which waits, must be posted although higher levels are
// unsent or busy.
inline bool IsDue(const ShardExchange& exchange, const PeerLane& lane, std::size_t level,
                  std::uint64_t units) {
  const std::uint64_t passed = std::max(exchange.overtaken[level], exchange.received_above[level]);
  return passed >= kOvertakesMax * units && lane.posted_at[level] * kUnitBytes < kYieldingBytes;
}

inline void ForgetPassed(ShardExchange& exchange, std::size_t level) {
  exchange.overtaken[level] = exchange.received_above[level] = 0;
}

inline void NotePosted(ShardExchange& exchange, PeerLane& lane, std::size_t level,
                       std::uint64_t units) {
  ++lane.posted;
  lane.posted_at[level] += units;
  exchange.posted_at[level] += units;
  ForgetPassed(exchange, level);
  for (std::size_t lower = 0; lower < level; ++lower)
    exchange.overtaken[lower] += exchange.waiting_at[lower] > 0 ? units : 0;
}

inline void NoteReceived(ShardExchange& exchange, std::size_t level, std::uint64_t units) {
  for (std::size_t lower = 0; lower < level; ++lower)
    exchange.received_above[lower] += exchange.waiting_at[lower] > 0 ? units : 0;
}

inline void ForgetPosted(ShardExchange& exchange, PeerLane& lane, std::size_t level,
                         std::uint64_t units) {
  lane.posted_at[level] -= units;
  exchange.posted_at[level] -= units;
}

// A lane reports them in order.
inline void NoteSent(ShardExchange& exchange, PeerLane& lane, std::size_t level,
                     std::uint64_t units) {
  --lane.posted;
  if (lane.draining > 0) --lane.draining;
  ForgetPosted(exchange, lane, level, units);
}

// A message begins to wait, or waits no longer.
inline void NoteWaiting(ShardExchange& exchange, std::size_t level) {
  ++exchange.waiting_count;
  ++exchange.waiting_at[level];
}
inline void NoteNotWaiting(ShardExchange& exchange, std::size_t level) {
  --exchange.waiting_count;
  if (--exchange.waiting_at[level] == 0) ForgetPassed(exchange, level);
}

// The lane was lost, and with it what was posted or waited.
inline void ForgetMessages(ShardExchange& exchange, PeerLane& lane) {
  for (std::size_t level = 0; level < kPriorityLevels; ++level) {
    WaitingMessages& waiting = lane.waiting[level];
    for (; waiting.begin < waiting.end; ++waiting.begin) NoteNotWaiting(exchange, level);
    ForgetPosted(exchange, lane, level, lane.posted_at[level]);
  }
  lane.posted = lane.draining = 0;
}

// When a message that waits because a higher class is busy may be posted, if nothing moves until
// then; `never`: none waits for that.
inline TimeNs NextWindow(const ShardExchange& exchange, TimeNs now, TimeNs never) {
  TimeNs next = never;
  if (!exchange.has_classes) return next;
  for (std::size_t level = 1; level < kPriorityLevels; ++level)
    if (LowerWaits(exchange, level) && exchange.activity.IsBusy(level, now))
      next = std::min(next, exchange.activity.BusyUntil(level));
  return next;
}

// The exchange has got or lost a chunk of that level.
inline void NoteLevels(ShardExchange& exchange) {
  exchange.top_level = 0;
  std::size_t classes = 0;
  for (std::size_t level = 0; level < kPriorityLevels; ++level) {
    if (exchange.chunks_at[level] == 0) continue;
    exchange.top_level = static_cast<std::uint8_t>(level);
    ++classes;
  }
  exchange.has_classes = classes > 1;
}
inline void NoteChunkAdded(ShardExchange& exchange, std::size_t level) {
  ++exchange.chunks_at[level];
  NoteLevels(exchange);
}
inline void NoteChunkRemoved(ShardExchange& exchange, std::size_t level) {
  --exchange.chunks_at[level];
  NoteLevels(exchange);
}

// What a message's kSent must say: when it was ready (modulo 2^40 ns, which is 18 minutes), its
// size, and its level.
inline constexpr int kLevelBits = 2;
inline constexpr int kUnitBits = 22;
inline constexpr int kTimeBits = 64 - kUnitBits - kLevelBits;
static_assert(kPriorityLevels <= std::size_t{1} << kLevelBits);
struct SentMessage {
  DurationNs waited = 0;
  std::uint64_t units = 0;
  std::size_t level = 0;
};
constexpr std::uint64_t CookieOf(TimeNs ready_at, std::uint64_t units, std::size_t level) {
  return static_cast<std::uint64_t>(ready_at) << (kUnitBits + kLevelBits) | units << kLevelBits |
         level;
}
constexpr SentMessage SentOf(std::uint64_t cookie, TimeNs now) {
  const std::uint64_t waited =
      static_cast<std::uint64_t>(now) - (cookie >> (kUnitBits + kLevelBits));
  return {static_cast<DurationNs>(waited & ((std::uint64_t{1} << kTimeBits) - 1)),
          cookie >> kLevelBits & ((std::uint64_t{1} << kUnitBits) - 1),
          cookie & ((std::uint64_t{1} << kLevelBits) - 1)};
}

}  // namespace phub::server::exchange
