// What a host has and allows, as far as lanes over RDMA depend on it. Cold; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/transport/verbs/gid_choice.h"

namespace phub::transport {

struct VerbsPortFacts {
  std::uint32_t number = 0;  // from 1
  std::string state = {};    // "PORT_ACTIVE", as the library says it
  bool active = false;
  bool ethernet = true;
  std::uint32_t mtu_bytes = 0;      // of the path, as it is now
  std::uint32_t mtu_bytes_max = 0;  // what the port could
  std::string interface = {};       // "eth0"; empty: not known, or InfiniBand
  std::vector<GidEntry> gids = {};
};

struct VerbsDeviceFacts {
  std::string name = {};  // "mlx5_0"
  std::string file = {};  // "/dev/infiniband/uverbs0"
  int open_error = 0;     // errno; not 0: nothing else is known
  bool windows = false;
  std::vector<VerbsPortFacts> ports = {};
};

inline constexpr std::uint64_t kUnlimitedBytes = UINT64_MAX;

struct VerbsHostFacts {
  std::vector<VerbsDeviceFacts> devices;
  bool kernel_support = false;                            // ib_uverbs is there
  std::uint64_t pinned_bytes_max = kUnlimitedBytes;       // RLIMIT_MEMLOCK of this process
  std::uint64_t pinned_bytes_max_hard = kUnlimitedBytes;  // to which the user may raise it
  bool may_exceed_limit = false;                          // CAP_IPC_LOCK: the limit does not count
  std::uint64_t huge_bytes_free = 0;                      // of the pool that was set aside
  std::string transparent_huge_pages;  // "always", "madvise", "never"; empty: not known
};

VerbsHostFacts ReadVerbsHostFacts();

}  // namespace phub::transport
