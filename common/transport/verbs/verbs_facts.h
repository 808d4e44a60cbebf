// The devices and limits of a host that lanes over RDMA depend on. Off the data path; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/transport/verbs/gid_choice.h"

namespace phub::transport {

struct VerbsPortFacts {
  std::uint32_t number = 0;  // from 1
  std::string state = {};    // "PORT_ACTIVE", from the verbs library
  bool active = false;
  bool ethernet = true;
  std::uint32_t mtu_bytes = 0;      // current path MTU
  std::uint32_t mtu_bytes_max = 0;  // supported by the port
  std::string interface = {};       // "eth0"; empty: unknown, or InfiniBand
  std::vector<GidEntry> gids = {};
};

struct VerbsDeviceFacts {
  std::string name = {};  // "mlx5_0"
  std::string file = {};  // "/dev/infiniband/uverbs0"
  int open_error = 0;     // errno; if not 0, the fields below are not set
  bool windows = false;
  std::vector<VerbsPortFacts> ports = {};
};

inline constexpr std::uint64_t kUnlimitedBytes = UINT64_MAX;

struct VerbsHostFacts {
  std::vector<VerbsDeviceFacts> devices;
  bool kernel_support = false;                            // ib_uverbs is loaded
  std::string library_problem;                            // of libibverbs; empty: none
  std::uint64_t pinned_bytes_max = kUnlimitedBytes;       // RLIMIT_MEMLOCK of this process
  std::uint64_t pinned_bytes_max_hard = kUnlimitedBytes;  // hard limit; users may raise it to this
  bool may_exceed_limit = false;                          // CAP_IPC_LOCK: the limit does not apply
  bool in_slurm_job = false;          // Slurm gives its tasks the limits of the shell that ran srun
  std::uint64_t huge_bytes_free = 0;  // free in the pool of huge pages
  std::string transparent_huge_pages;  // "always", "madvise", "never"; empty: unknown
};

VerbsHostFacts ReadVerbsHostFacts();

}  // namespace phub::transport
