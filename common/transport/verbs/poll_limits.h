// How many completions a VerbsTransport polls at once, and how often it calls the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"

namespace phub::transport {

// Completions of one call, and calls for one queue in a Poll. The others wait for the next Poll.
inline constexpr std::size_t kCompletionsAtOnce = 64;
inline constexpr std::size_t kQueueTurns = 16;
// A Poll that finds nothing costs about 10 ns; a call of epoll_wait costs about 300 ns.
inline constexpr std::uint32_t kPollsPerCollect = 64;
inline constexpr DurationNs kCollectInterval = kMillisecond;
// How often to check for lanes whose device reports no more completions.
inline constexpr DurationNs kCheckInterval = 100 * kMillisecond;
inline constexpr int kEventsPerCollect = 256;
// Marks the queues' channels in epoll. No connection has this generation.
inline constexpr std::uint32_t kQueueGeneration = 0;

}  // namespace phub::transport
