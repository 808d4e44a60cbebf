// How many core loops there are, where they run and how they wait: the settings cores, pin and
// wait, and the machine, made into a plan. Pure; any thread.
//
// How many. A list of cores: one loop for each. A number: as many. auto: a quarter of the usable
// cores, 2 to 8 (1 if there is one): on a shared host the workers, the control plane and the kernel
// need the rest.
// Pinned. pin = auto pins a list always, since the user named the cores; a number if at least two
// more cores are usable than there are loops (control and kernel need somewhere to run); auto
// never, since nothing says that the host is ours: two daemons would choose the same cores.
// Waiting. wait = auto lets a pinned loop poll, and block once it had no work for a while, so that
// an idle daemon is idle; a loop without a core of its own must not poll at all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/cpu_topology.h"
#include "server/config/settings.h"

namespace phub::server {

// Loops of one daemon; bounds threads and the tables that have a row for each.
inline constexpr std::size_t kCoreLoopsMax = 256;
// A polling loop blocks after so long without work. A wake from blocking costs about 25 us, which
// is nothing once 10 ms have passed.
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

// The NUMA node of each core loop's core; nothing for a loop that is not pinned.
using NumaNodes = std::vector<std::optional<std::uint32_t>>;
NumaNodes NodesOf(const CorePlan& plan, const CpuTopology& topology);

// InvalidArgument: a core that may not be used, more pinned loops than cores, too many loops; says
// which cores are usable.
absl::StatusOr<CorePlan> PlanCores(const Settings& settings, const CpuTopology& topology);

}  // namespace phub::server
