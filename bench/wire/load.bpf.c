// A load as from a wire: frames that are made one by one in the kernel and put on an interface, so
// that the interface at its other end receives them as a network card would. And the smallest
// programs, for comparison.
//
// Frames are reused. Whoever gets them may change headers, and turns integers into sums; so headers
// are written each time, and the integers are zeros.
// libbpf's headers need the types of the first one.
// clang-format off
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
// clang-format on

#define inline inline __attribute__((always_inline))
#include "bench/wire/layout.h"

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct phub_wire_load);
} load SEC(".maps");

static inline __u16 fold(__u64 sum) {
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return ~sum & 0xffff;
}

// Sends the next contribution. The frame has the right length and zeros as integers.
SEC("xdp") int contribute(struct xdp_md* context) {
  void* const data = (void*)(long)context->data;
  void* const end = (void*)(long)context->data_end;
  struct ethhdr* const ethernet = data;
  struct iphdr* const ip = data + sizeof *ethernet;
  struct udphdr* const udp = (void*)ip + sizeof *ip;
  __u8* const bytes = (__u8*)udp + sizeof *udp;
  const __u32 zero = 0;
  struct phub_wire_load* const own = bpf_map_lookup_elem(&load, &zero);
  if (!own || (void*)(bytes + PHUB_PACKET_BYTES) > end) return XDP_ABORTED;
  const __u64 number = own->next++;
  const __u32 workers = own->workers ? own->workers : 1;
  const __u32 slots = own->slots ? own->slots : 1;
  const __u32 worker = number % workers;
  const __u64 block = number / workers;
  const struct phub_packet packet = {.lease = own->lease,
                                     .phase = block / slots,
                                     .slot = block % slots,
                                     .count = own->count,
                                     .kind = PHUB_PACKET_PAYLOAD,
                                     .worker = worker};
  phub_packet_encode(&packet, &own->key, bytes);
  __builtin_memset(ethernet->h_dest, 2, 6);
  __builtin_memset(ethernet->h_source, 4, 6);
  ethernet->h_proto = bpf_htons(ETH_P_IP);
  const __u32 udp_bytes = sizeof *udp + PHUB_PACKET_BYTES + 4 * own->count;
  ip->version = 4;
  ip->ihl = 5;
  ip->tos = 0;
  ip->tot_len = bpf_htons(sizeof *ip + udp_bytes);
  ip->id = 0;
  ip->frag_off = 0;
  ip->ttl = 64;
  ip->protocol = IPPROTO_UDP;
  ip->saddr = bpf_htonl(bpf_ntohl(own->first_worker) + worker);
  ip->daddr = own->aggregator;
  ip->check = 0;
  const __u32* const words = (const __u32*)ip;
  ip->check = fold((__u64)words[0] + words[1] + words[2] + words[3] + words[4]);
  udp->source = own->worker_port;
  udp->dest = own->aggregator_port;
  udp->len = bpf_htons(udp_bytes);
  __u64 checksum = (__u64)ip->saddr + ip->daddr + bpf_htons(IPPROTO_UDP) + udp->source + udp->dest +
                   2 * (__u32)udp->len;
  const __u32* const header = (const __u32*)bytes;
#pragma unroll
  for (__u32 i = 0; i < PHUB_PACKET_BYTES / 4; ++i) checksum += header[i];
  const __u16 folded = fold(checksum);
  udp->check = folded != 0 ? folded : 0xffff;
  return bpf_redirect(own->interface, 0);
}

// Sends a frame as it is.
SEC("xdp") int send(struct xdp_md* context) {
  (void)context;
  const __u32 zero = 0;
  const struct phub_wire_load* own = bpf_map_lookup_elem(&load, &zero);
  return own ? bpf_redirect(own->interface, 0) : XDP_ABORTED;
}

// The empty program, and the same for the end of the wire where sums arrive.
SEC("xdp") int empty(struct xdp_md* context) {
  (void)context;
  return XDP_DROP;
}
SEC("xdp") int sink(struct xdp_md* context) {
  (void)context;
  return XDP_DROP;
}
// An interface with a program receives frames of programs.
SEC("xdp") int pass(struct xdp_md* context) {
  (void)context;
  return XDP_PASS;
}

char license_[] SEC("license") = "Apache-2.0";
