#include "server/core_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "common/base/check.h"

namespace phub::server {
namespace {

constexpr std::uint32_t kLoopsOfAutoMax = 8;
// Summing is bound by memory bandwidth. One core does not saturate it; two almost do. Loops block
// when there is nothing to sum, so the second loop costs a small host nothing.
constexpr std::uint32_t kLoopsOfAutoMin = 2;
// With cores = <number>, loops are pinned only if this many cores stay free for the control plane
// and the kernel.
constexpr std::size_t kCoresLeftFree = 2;

std::string UsableText(const CpuTopology& topology) {
  std::vector<std::uint32_t> usable;
  for (const Core& core : topology.cores()) usable.push_back(core.os_index);
  return FormatCoreList(usable);
}

std::optional<std::uint32_t> AsCount(const std::string& text) {
  std::uint32_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return count;
}

absl::Status TooMany(const std::string& cores, std::size_t count) {
  return absl::InvalidArgumentError(
      fmt::format("cores = \"{}\" asks for {} core loops; at most {} are possible", cores, count,
                  kCoreLoopsMax));
}

absl::StatusOr<CorePlan> PlanList(const Settings& settings, const CpuTopology& topology) {
  const auto list = ParseCoreList(settings.cores);
  PHUB_CHECK(list.ok(), "cores={}", settings.cores);  // checked when the setting was read
  if (list->size() > kCoreLoopsMax) return TooMany(settings.cores, list->size());
  CorePlan plan;
  for (const std::uint32_t core : *list) {
    if (topology.Find(core) == nullptr) {
      return absl::InvalidArgumentError(fmt::format(
          "cores = \"{}\" has core {}, which this process may not use; usable cores: {}",
          settings.cores, core, UsableText(topology)));
    }
    plan.pins.push_back(settings.pin == PinMode::kOff ? std::nullopt : std::optional(core));
  }
  return plan;
}

absl::StatusOr<CorePlan> PlanCount(const Settings& settings, const CpuTopology& topology) {
  const std::size_t usable = topology.cores().size();
  const auto asked = AsCount(settings.cores);
  const auto few = static_cast<std::uint32_t>(std::min<std::size_t>(usable, kLoopsOfAutoMin));
  const auto quarter = static_cast<std::uint32_t>(usable / 4);
  const std::uint32_t count = asked ? *asked : std::clamp(quarter, few, kLoopsOfAutoMax);
  if (count > kCoreLoopsMax) return TooMany(settings.cores, count);
  bool pin = settings.pin == PinMode::kOn;
  if (settings.pin == PinMode::kAuto) pin = asked && usable >= count + kCoresLeftFree;
  CorePlan plan;
  plan.pins.resize(count);
  if (!pin) return plan;
  if (count > usable) {
    return absl::InvalidArgumentError(
        fmt::format("pin = \"on\" with cores = \"{}\" needs {} cores, but only {} are usable ({})",
                    settings.cores, count, usable, UsableText(topology)));
  }
  const std::vector<std::uint32_t> chosen = topology.Choose(count);
  std::copy(chosen.begin(), chosen.end(), plan.pins.begin());
  return plan;
}

}  // namespace

std::string CorePlan::PinsText() const {
  if (!pinned()) return "none";
  std::vector<std::uint32_t> cores;
  for (const auto& pin : pins) cores.push_back(*pin);
  return FormatCoreList(cores);
}

const char* ToString(CorePlan::Waiting waiting) {
  switch (waiting) {
    case CorePlan::Waiting::kPoll: return "poll";
    case CorePlan::Waiting::kPollThenBlock: return "poll-then-block";
    case CorePlan::Waiting::kBlock: return "block";
  }
  return "unknown";
}

absl::StatusOr<CorePlan> PlanCores(const Settings& settings, const CpuTopology& topology) {
  const bool is_count = settings.cores == "auto" || AsCount(settings.cores).has_value();
  auto plan = is_count ? PlanCount(settings, topology) : PlanList(settings, topology);
  if (!plan.ok()) return plan;
  switch (settings.wait) {
    case WaitMode::kPoll: plan->waiting = CorePlan::Waiting::kPoll; break;
    case WaitMode::kBlock: plan->waiting = CorePlan::Waiting::kBlock; break;
    case WaitMode::kAuto:
      plan->waiting =
          plan->pinned() ? CorePlan::Waiting::kPollThenBlock : CorePlan::Waiting::kBlock;
      break;
  }
  return plan;
}

NumaNodes NodesOf(const CorePlan& plan, const CpuTopology& topology) {
  NumaNodes nodes;
  for (const std::optional<std::uint32_t>& pin : plan.pins) {
    const Core* const core = pin ? topology.Find(*pin) : nullptr;
    nodes.push_back(core != nullptr ? std::optional(core->numa_node) : std::nullopt);
  }
  return nodes;
}

}  // namespace phub::server
