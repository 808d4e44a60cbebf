// The cores that this process may use, and pinning a thread to one. Reads the machine once, with
// hwloc, which only common/base knows. Immutable after Create(); any thread.
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
  std::uint32_t os_index = 0;  // as the kernel, taskset and top number it
  std::uint32_t numa_node = 0;
  std::uint32_t physical_core = 0;  // hyper-threads of one physical core share this number
};

class CpuTopology {
 public:
  // Fails only when the machine cannot be read at all.
  static absl::StatusOr<CpuTopology> Create();

  // By os_index, ascending; never empty.
  const std::vector<Core>& cores() const { return cores_; }
  std::uint32_t numa_node_count() const { return numa_node_count_; }
  const Core* Find(std::uint32_t os_index) const;  // null: no such core, or not allowed

  // The `count` cores to give to busy threads when the user named none: one hyper-thread of every
  // physical core before second ones, high numbers first (interrupts and everybody else's work
  // tend to sit on the low ones). count <= cores().size().
  std::vector<std::uint32_t> Choose(std::uint32_t count) const;

 private:
  std::vector<Core> cores_;
  std::uint32_t numa_node_count_ = 1;
};

// "0-3,8" -> {0,1,2,3,8}. Invalid argument names what is wrong: empty, not a number, reversed
// ("3-1"), twice the same, or above kCoreOsIndexMax.
inline constexpr std::uint32_t kCoreOsIndexMax = 4095;  // bounds what "0-4000000000" expands to
absl::StatusOr<std::vector<std::uint32_t>> ParseCoreList(std::string_view text);
std::string FormatCoreList(const std::vector<std::uint32_t>& cores);  // {0,1,2,3,8} -> "0-3,8"

// Binds the calling thread, and the memory it touches first, to one core.
absl::Status PinThisThread(std::uint32_t os_index);

// As top and gdb show it; cut to the kernel's 15 characters.
void NameThisThread(const std::string& name);

}  // namespace phub
