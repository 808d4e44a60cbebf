// A bad network in one piece: forwards packets between pairs of interfaces (TC, ingress). It drops
// some, sends some twice, at once or later, and sends some later than others.
//
// What happens to the n-th packet of a direction depends on the seed only. Packets that are sent
// later go to the process (main.cc) through a ring, because TC cannot keep a packet.
// libbpf's headers need the types of the first one.
// clang-format off
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
// clang-format on

#define inline inline __attribute__((always_inline))
#include "bench/box/layout.h"
#include "common/aggregation/packet.h"

#define DATAGRAM_AT (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr))

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct phub_box_settings);
} settings SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 2 * PHUB_BOX_LINKS_MAX);
  __type(key, __u32);
  __type(value, struct phub_box_place);
} places SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 2 * PHUB_BOX_LINKS_MAX);
  __type(key, __u32);
  __type(value, struct phub_box_counters);
} counters SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, PHUB_BOX_HELD_BYTES);
} held SEC(".maps");

// The next number of SplitMix64.
static inline __u32 draw(__u64* state) {
  __u64 z = (*state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z >> 32;
}

static inline int hits(__u64* state, __u32 probability) { return draw(state) < probability; }

static inline void count(__u64* counter, __u64 by) { __sync_fetch_and_add(counter, by); }

static inline void count_kind(struct __sk_buff* packet, __be16 port,
                              struct phub_box_counters* counts) {
  struct iphdr ip;
  struct udphdr udp;
  __u8 header[4];
  if (bpf_skb_load_bytes(packet, sizeof(struct ethhdr), &ip, sizeof ip) != 0) return;
  if (ip.version != 4 || ip.ihl != 5 || ip.protocol != IPPROTO_UDP) return;
  if (bpf_skb_load_bytes(packet, sizeof(struct ethhdr) + sizeof ip, &udp, sizeof udp) != 0) return;
  if (port == 0 || (udp.source != port && udp.dest != port)) return;
  if (bpf_skb_load_bytes(packet, DATAGRAM_AT, header, sizeof header) != 0) return;
  if (phub_load16(header) != PHUB_PACKET_MAGIC) return;
  __u32 kind = header[3];
  asm volatile("" : "+r"(kind));
  kind &= PHUB_BOX_KINDS - 1;
  count(&counts->kinds[kind], 1);
  count(&counts->payload_bytes[kind],
        bpf_ntohs(udp.len) - sizeof(struct udphdr) - PHUB_PACKET_BYTES);
}

// Gives the packet to the process, to be sent between half of `delay_ns` and all of it later.
static inline void hold(struct __sk_buff* packet, __u32 interface, __u64 delay_ns, __u64* state,
                        struct phub_box_counters* counts) {
  struct phub_box_packet* copy = bpf_ringbuf_reserve(&held, sizeof *copy, 0);
  if (!copy) {
    count(&counts->ring_full, 1);
    return;
  }
  __u32 length = packet->len;
  asm volatile("" : "+r"(length));  // the verifier must see the checks of the register that is used
  if (length < sizeof(struct ethhdr) || length > PHUB_BOX_PACKET_MAX ||
      bpf_skb_load_bytes(packet, 0, copy->bytes, length) != 0) {
    bpf_ringbuf_discard(copy, 0);
    count(&counts->joined, 1);
    return;
  }
  const __u64 half = delay_ns / 2;
  copy->delay_ns = half + ((half * (draw(state) >> 8)) >> 24);
  copy->interface = interface;
  copy->length = length;
  bpf_ringbuf_submit(copy, 0);
}

SEC("tc") int box(struct __sk_buff* packet) {
  const __u32 interface = packet->ifindex;
  const __u32 zero = 0;
  const struct phub_box_place* place = bpf_map_lookup_elem(&places, &interface);
  const struct phub_box_settings* own = bpf_map_lookup_elem(&settings, &zero);
  if (!place || !own) return TC_ACT_SHOT;
  const __u32 other = place->other;
  // Losses of ARP take seconds to repair, so only IP is in trouble.
  if (packet->protocol != bpf_htons(ETH_P_IP)) return bpf_redirect(other, 0);
  const __u32 index = place->index;
  struct phub_box_counters* counts = bpf_map_lookup_elem(&counters, &index);
  if (!counts) return TC_ACT_SHOT;
  const struct phub_box_trouble* trouble = &own->trouble[index & 1];
  const __u64 number = __sync_fetch_and_add(&counts->seen, 1);
  __u64 state = own->seed + ((__u64)index << 48) + number * 0xd1342543de82ef95;
  count_kind(packet, own->port, counts);
  if (packet->len > PHUB_BOX_PACKET_MAX) count(&counts->joined, 1);
  if (hits(&state, trouble->lost)) {
    count(&counts->lost, 1);
    return TC_ACT_SHOT;
  }
  if (hits(&state, trouble->repeated)) {
    count(&counts->repeated, 1);
    bpf_clone_redirect(packet, other, 0);
  }
  if (hits(&state, trouble->repeated_late)) {
    count(&counts->repeated_late, 1);
    hold(packet, other, trouble->delay_ns, &state, counts);
  }
  if (hits(&state, trouble->reordered)) {
    count(&counts->reordered, 1);
    hold(packet, other, trouble->reorder_ns, &state, counts);
    return TC_ACT_SHOT;
  }
  if (hits(&state, trouble->delayed)) {
    count(&counts->delayed, 1);
    hold(packet, other, trouble->delay_ns, &state, counts);
    return TC_ACT_SHOT;
  }
  return bpf_redirect(other, 0);
}

char license_[] SEC("license") = "Apache-2.0";
