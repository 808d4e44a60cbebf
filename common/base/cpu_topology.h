// The cores that this process may use, and pinning a thread to a core. Reads the topology once,
// with hwloc; no other folder depends on hwloc. Immutable after Create(); any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace phub {

// One logical processor that the affinity mask allows.
struct Core {
  std::uint32_t os_index = 0;  // the number in the kernel, taskset and top
  std::uint32_t numa_node = 0;
  std::uint32_t physical_core = 0;  // hyper-threads of one physical core share this number
};

class CpuTopology {
 public:
  // Fails only if hwloc cannot read the topology.
  static absl::StatusOr<CpuTopology> Create();

  // In ascending order of os_index; never empty.
  const std::vector<Core>& cores() const { return cores_; }
  std::uint32_t numa_node_count() const { return numa_node_count_; }
  const Core* Find(std::uint32_t os_index) const;  // null: missing or not allowed

  // Chooses `count` cores for busy threads when the user names none: one hyper-thread of every
  // physical core before second hyper-threads, and high numbers first, because interrupts and
  // other processes mostly run on low ones. REQUIRES: count <= cores().size().
  std::vector<std::uint32_t> Choose(std::uint32_t count) const;

 private:
  std::vector<Core> cores_;
  std::uint32_t numa_node_count_ = 1;
};

// "0-3,8" -> {0,1,2,3,8}. INVALID_ARGUMENT if a part is empty, not a number, reversed ("3-1"),
// a duplicate, or above kCoreOsIndexMax.
inline constexpr std::uint32_t kCoreOsIndexMax = 4095;  // limits how far a range can expand
absl::StatusOr<std::vector<std::uint32_t>> ParseCoreList(std::string_view text);
std::string FormatCoreList(const std::vector<std::uint32_t>& cores);  // {0,1,2,3,8} -> "0-3,8"

// Binds the calling thread to one core. Memory that it touches first is then local to that core.
absl::Status PinThisThread(std::uint32_t os_index);

// The name that top and gdb show, truncated to the kernel's limit of 15 characters.
void NameThisThread(const std::string& name);

}  // namespace phub
