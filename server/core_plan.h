// The number of core loops, where they run and how they wait, computed from the settings cores, pin
// and wait and from the machine. Pure; any thread.
//
//   cores = list     one loop for each core; pin = auto pins them, since the user chose the cores
//   cores = number   that many loops; pin = auto pins them if at least two more cores are usable,
//                    so that control and the kernel have cores to run on
//   cores = auto     a quarter of the usable cores, 2 to 8 (1 if only one is usable): on a shared
//                    host the workers, the control plane and the kernel need the rest. pin = auto
//                    does not pin them, because a second daemon would choose the same cores
//
// wait = auto: a pinned loop polls, and blocks after a while without work, so that an idle daemon
// uses no CPU. A loop that is not pinned must not poll.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/cpu_topology.h"
#include "server/config/settings.h"

namespace phub::server {

// The most core loops of one daemon. Bounds the threads and the tables with a row for each loop.
inline constexpr std::size_t kCoreLoopsMax = 256;
// A polling loop blocks after this time without work. A wakeup costs about 25 us, which is
// negligible after 10 ms.
inline constexpr DurationNs kPollBeforeBlock = 10 * kMillisecond;

struct CorePlan {
  enum class Waiting : std::uint8_t {
    kPoll,           // never blocks
    kPollThenBlock,  // blocks after kPollBeforeBlock without work
    kBlock,          // yields a few times, then blocks
  };
  std::vector<std::optional<std::uint32_t>> pins;  // per loop: os index of its core
  Waiting waiting = Waiting::kBlock;

  std::size_t loop_count() const { return pins.size(); }
  bool pinned() const { return !pins.empty() && pins.front().has_value(); }
  std::string PinsText() const;  // "2-5", or "none"
};
const char* ToString(CorePlan::Waiting waiting);

// The NUMA node of each core loop's core; nullopt for a loop that is not pinned.
using NumaNodes = std::vector<std::optional<std::uint32_t>>;
NumaNodes NodesOf(const CorePlan& plan, const CpuTopology& topology);

// InvalidArgument: a core that may not be used, more pinned loops than cores, or too many loops.
absl::StatusOr<CorePlan> PlanCores(const Settings& settings, const CpuTopology& topology);

}  // namespace phub::server
