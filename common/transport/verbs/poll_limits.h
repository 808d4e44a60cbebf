// How much a VerbsTransport takes at once, and how often it asks the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"

namespace phub::transport {

// Completions that are taken at once, and how often in a row: more wait for the next Poll.
inline constexpr std::size_t kCompletionsAtOnce = 64;
inline constexpr std::size_t kQueueTurns = 16;
// A Poll that finds nothing costs some 10 ns, asking the kernel some 300.
inline constexpr std::uint32_t kPollsPerCollect = 64;
inline constexpr DurationNs kCollectInterval = kMillisecond;
// Lanes whose device says nothing any more are looked for this often.
inline constexpr DurationNs kCheckInterval = 100 * kMillisecond;
inline constexpr int kEventsPerCollect = 256;
// Of the queues' channels in epoll: no connection has this generation.
inline constexpr std::uint32_t kQueueGeneration = 0;

}  // namespace phub::transport
