// What the load's programs in the kernel (load.bpf.c) and the process that runs them share.
// C99 without a C library.
#pragma once

#include <linux/types.h>

#include "common/aggregation/packet.h"

// The only value of the array `load`. Contribution c is worker c % workers' to slot q % slots, in
// phase q / slots, where q = c / workers.
struct phub_wire_load {
  struct phub_lease_key key;
  __u32 lease;
  __u32 interface;  // where frames are put on the wire
  __u32 workers;
  __u32 slots;
  __u32 count;  // integers
  __be32 aggregator;
  __be32 first_worker;  // the others' addresses follow
  __be16 aggregator_port;
  __be16 worker_port;
  __u64 next;  // contribution
};
