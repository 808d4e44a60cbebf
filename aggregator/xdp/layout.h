// What the program in the kernel (aggregate.bpf.c) and the process that loads it share: the values
// of its maps. C99 without a C library.
//
//   map       type           key           value
//   settings  array          0             phub_xdp_settings
//   leases    hash           lease number  phub_xdp_lease
//   pool      array          slot          phub_xdp_slot; each lease has a range of slots
//   hops      hash           lease number  phub_xdp_hop, how to reach the lease's core loop
//   counters  per-CPU array  0             phub_xdp_counters
//   events    ring buffer    -             phub_xdp_event
#pragma once

#include <linux/bpf.h>

#include "common/aggregation/packet.h"
#include "common/aggregation/slot.h"

#define PHUB_XDP_LEASES_MAX 1024u
#define PHUB_XDP_EVENT_BYTES (1u << 18)  // the size of the ring

struct phub_xdp_settings {
  __be32 address;  // the process's, where workers send to
  __be16 port;
  __u16 zero;
};

struct phub_xdp_lease {
  struct phub_lease lease;
  __u32 first_slot;
  __u32 zero;
  __u64 sums;  // sent for the first time
};

// A program on another CPU may still hold a lease that has ended, while its slots have a new one.
// Therefore each slot has the number of its lease under its lock.
struct phub_xdp_slot {
  struct bpf_spin_lock lock;
  __u32 lease;
  struct phub_slot slot;
  __u32 values[PHUB_PACKET_COUNT_MAX];
};

// Learned from the core loop's packets: sums go back the way that these have come.
struct phub_xdp_hop {
  __u32 interface;
  __u8 to[6];  // MAC addresses
  __u8 from[6];
};

// What the process must do: answer a worker, or send the sum that the slot has.
struct phub_xdp_event {
  struct phub_packet packet;
  __u32 verdict;
  struct phub_slot slot;  // as it was under its lock
};

struct phub_xdp_counters {
  __u64 kinds[16];
  __u64 checks[16];
  __u64 verdicts[16];
  __u64 sums;         // sent by the program, straight to a core loop
  __u64 passed;       // left to the process: packets of core loops, and datagrams joined to one
  __u64 events_lost;  // the ring was full
};
