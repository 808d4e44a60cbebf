#include "common/base/cpu_topology.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <set>

#include "common/base/check.h"

namespace phub {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, DestroyTopology>;

struct FreeBitmap {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

std::uint32_t NumaNodeOf(hwloc_obj_t processing_unit) {
  const int first = hwloc_bitmap_first(processing_unit->nodeset);
  return first < 0 ? 0 : static_cast<std::uint32_t>(first);
}

std::uint32_t PhysicalCoreOf(hwloc_topology_t topology, hwloc_obj_t processing_unit) {
  const hwloc_obj_t core =
      hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, processing_unit);
  return core == nullptr ? processing_unit->os_index : core->logical_index;
}

absl::StatusOr<std::uint32_t> ParseCoreNumber(std::string_view text, std::string_view whole) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() ||
      value > kCoreOsIndexMax) {
    return absl::InvalidArgumentError(
        fmt::format("\"{}\" is not a core number from 0 to {} (in the list \"{}\")", text,
                    kCoreOsIndexMax, whole));
  }
  return value;
}

}  // namespace

absl::StatusOr<CpuTopology> CpuTopology::Create() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0)
    return absl::InternalError(
        fmt::format("cannot read the CPU topology: hwloc_topology_init: {}", std::strerror(errno)));
  const Topology topology(raw);
  if (hwloc_topology_load(raw) != 0)
    return absl::InternalError(
        fmt::format("cannot read the CPU topology: hwloc_topology_load: {}", std::strerror(errno)));

  const Bitmap allowed(hwloc_bitmap_alloc());
  // The process's affinity mask, as set by taskset, systemd's CPUAffinity or a container.
  if (hwloc_get_cpubind(raw, allowed.get(), HWLOC_CPUBIND_PROCESS) != 0)
    hwloc_bitmap_copy(allowed.get(), hwloc_topology_get_allowed_cpuset(raw));

  CpuTopology result;
  std::set<std::uint32_t> numa_nodes;
  const int unit_count = hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_PU);
  for (int i = 0; i < unit_count; ++i) {
    const hwloc_obj_t unit = hwloc_get_obj_by_type(raw, HWLOC_OBJ_PU, static_cast<unsigned>(i));
    if (!hwloc_bitmap_isset(allowed.get(), unit->os_index)) continue;
    result.cores_.push_back({unit->os_index, NumaNodeOf(unit), PhysicalCoreOf(raw, unit)});
    numa_nodes.insert(result.cores_.back().numa_node);
  }
  if (result.cores_.empty())
    return absl::InternalError(
        "hwloc found no core that this process may use; check the process's affinity mask");
  std::sort(result.cores_.begin(), result.cores_.end(),
            [](const Core& a, const Core& b) { return a.os_index < b.os_index; });
  result.numa_node_count_ = static_cast<std::uint32_t>(numa_nodes.size());
  return result;
}

const Core* CpuTopology::Find(std::uint32_t os_index) const {
  for (const Core& core : cores_)
    if (core.os_index == os_index) return &core;
  return nullptr;
}

std::vector<std::uint32_t> CpuTopology::Choose(std::uint32_t count) const {
  PHUB_CHECK(count <= cores_.size(), "count={} cores={}", count, cores_.size());
  std::vector<std::uint32_t> chosen;
  std::set<std::uint32_t> physical_taken;
  for (const bool second_threads : {false, true}) {
    for (auto core = cores_.rbegin(); core != cores_.rend() && chosen.size() < count; ++core) {
      if (std::find(chosen.begin(), chosen.end(), core->os_index) != chosen.end()) continue;
      if (!physical_taken.insert(core->physical_core).second && !second_threads) continue;
      chosen.push_back(core->os_index);
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

absl::StatusOr<std::vector<std::uint32_t>> ParseCoreList(std::string_view text) {
  std::set<std::uint32_t> seen;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const std::size_t dash = part.find('-');
    const auto first = ParseCoreNumber(part.substr(0, dash), text);
    if (!first.ok()) return first.status();
    const auto last =
        dash == std::string_view::npos ? first : ParseCoreNumber(part.substr(dash + 1), text);
    if (!last.ok()) return last.status();
    if (*last < *first)
      return absl::InvalidArgumentError(
          fmt::format("core range \"{}\" is reversed; write {}-{}", part, *last, *first));
    for (std::uint32_t core = *first; core <= *last; ++core) {
      if (!seen.insert(core).second)
        return absl::InvalidArgumentError(
            fmt::format("core {} is listed twice in \"{}\"", core, text));
    }
    begin = end + 1;
  }
  return std::vector<std::uint32_t>(seen.begin(), seen.end());
}

std::string FormatCoreList(const std::vector<std::uint32_t>& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::format("{}", cores[i]) : fmt::format("{}-{}", cores[i], cores[last]);
    i = last + 1;
  }
  return text;
}

absl::Status PinThisThread(std::uint32_t os_index) {
  PHUB_CHECK(os_index <= kCoreOsIndexMax, "os_index={}", os_index);
  const std::size_t set_bytes = CPU_ALLOC_SIZE(kCoreOsIndexMax + 1);
  cpu_set_t* set = CPU_ALLOC(kCoreOsIndexMax + 1);
  CPU_ZERO_S(set_bytes, set);
  CPU_SET_S(os_index, set_bytes, set);
  const int error = pthread_setaffinity_np(pthread_self(), set_bytes, set);
  CPU_FREE(set);
  if (error != 0) {
    return absl::FailedPreconditionError(
        fmt::format("cannot pin a thread to core {}: {}; the core is probably not in the process's "
                    "affinity mask",
                    os_index, std::strerror(error)));
  }
  return absl::OkStatus();
}

void NameThisThread(const std::string& name) {
  constexpr std::size_t kLengthMax = 15;  // TASK_COMM_LEN without the terminator
  pthread_setname_np(pthread_self(), name.substr(0, kLengthMax).c_str());
}

}  // namespace phub
