// What the box's program in the kernel (box.bpf.c) and the process that loads it share: the values
// of its maps. C99 without a C library.
//
//   map       type         key                      value
//   settings  array        0                        phub_box_settings
//   places    hash         interface                phub_box_place
//   counters  array        link * 2 + direction     phub_box_counters
//   held      ring buffer  -                        phub_box_packet
#pragma once

#include <linux/types.h>

#define PHUB_BOX_LINKS_MAX 128u
#define PHUB_BOX_PACKET_MAX 1600u       // longer than a frame of Ethernet
#define PHUB_BOX_HELD_BYTES (1u << 22)  // the size of the ring
#define PHUB_BOX_KINDS 16u              // kinds of datagrams of sums, by their number

// What happens to the packets of one direction. Probabilities are of 2^32.
struct phub_box_trouble {
  __u32 lost;
  __u32 repeated;       // sent twice in a row
  __u32 repeated_late;  // sent, and sent again later
  __u32 reordered;      // sent a little later, after packets that came later
  __u32 delayed;        // sent later
  __u32 zero;
  __u64 reorder_ns;  // how much later at most; at least half of it
  __u64 delay_ns;    // the same for late repetitions and delayed packets
};

struct phub_box_settings {
  __u64 seed;
  struct phub_box_trouble trouble[2];  // by direction
  __be16 port;  // the aggregator's: datagrams from or to it are counted by kind
  __u16 zero[3];
};

struct phub_box_place {
  __u32 other;  // the interface at the link's other end
  __u32 index;  // of its counters
};

struct phub_box_counters {
  __u64 seen;
  __u64 lost;
  __u64 repeated;
  __u64 repeated_late;
  __u64 reordered;
  __u64 delayed;
  __u64 ring_full;  // packets that were to be held, and were lost
  __u64 joined;     // too long for a wire: the sender has not cut them
  // Datagrams of sums as they arrived, before anything happened to them.
  __u64 kinds[PHUB_BOX_KINDS];
  __u64 payload_bytes[PHUB_BOX_KINDS];
};

// A packet that is sent later.
struct phub_box_packet {
  __u64 delay_ns;
  __u32 interface;
  __u32 length;
  __u8 bytes[PHUB_BOX_PACKET_MAX];
};
