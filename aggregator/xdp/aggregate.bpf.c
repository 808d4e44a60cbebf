// The aggregator in the kernel, at the network driver (XDP): the checks of packet.h and the rules
// of slot.h, which the aggregator in user space compiles too, on slots that are in a map.
//
//   datagram                     the program
//   not IPv4 and UDP, not for    passes it on
//     this aggregator, fragment
//   PAYLOAD, good                asks the slot under its lock, and adds. The last contribution
//                                becomes the sum, which goes to the core loop. An event makes the
//                                process send it if the way there is not known yet, and REFUSED
//   NACK or PARAMETERS, good     learns the way to the core loop, and passes it on to the process
//   longer than its header says  passes it on: the network stack may have joined datagrams, and the
//                                process receives them cut again
//   not good                     drops and counts it
//
// The process hands the program datagrams of workers that reached its socket (`hand_in`), so all
// contributions meet in the same slots, on whatever way they came.
//
// PHUB_XDP_NO_LOCK and PHUB_XDP_NO_PHASE make mistakes, for a test that must find them.
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

// No function may be called while a lock is held.
#define inline inline __attribute__((always_inline))
#include "aggregator/xdp/layout.h"

#define HEADERS_BYTES 42u  // Ethernet, IPv4 without options, UDP
#define UNROLLED 16u
#define FRAGMENT_BITS 0x3fff  // more fragments, and the offset

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct phub_xdp_settings);
} settings SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, PHUB_XDP_LEASES_MAX);
  __uint(map_flags, BPF_F_NO_PREALLOC);  // an element that is in use is not overwritten
  __type(key, __u32);
  __type(value, struct phub_xdp_lease);
} leases SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);  // set before it is loaded
  __type(key, __u32);
  __type(value, struct phub_xdp_slot);
} pool SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, PHUB_XDP_LEASES_MAX);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, __u32);
  __type(value, struct phub_xdp_hop);
} hops SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct phub_xdp_counters);
} counters SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, PHUB_XDP_EVENT_BYTES);
} events SEC(".maps");

struct frame {
  struct xdp_md* context;
  struct ethhdr* ethernet;
  struct iphdr* ip;
  struct udphdr* udp;
  __u8* bytes;  // the datagram
  void* end;
  __u32 length;  // of the datagram
};

// The index is less than 16, but the verifier forgets that once it has been on the stack.
#define COUNT(array, index)       \
  do {                            \
    __u32 at_ = (index);          \
    asm volatile("" : "+r"(at_)); \
    ++(array)[at_ & 15];          \
  } while (0)

// Points to the parts of the packet, `bytes` of which must be there. Also done again after each
// loop: the verifier remembers how far a loop has come by what it knows about pointers, and would
// check the code after the loop for each length.
static inline int locate(struct frame* frame, __u32 bytes) {
  void* const data = (void*)(long)*(volatile __u32*)&frame->context->data;
  frame->end = (void*)(long)*(volatile __u32*)&frame->context->data_end;
  if (data + bytes > frame->end) return 0;
  frame->ethernet = data;
  frame->ip = data + sizeof(struct ethhdr);
  frame->udp = data + sizeof(struct ethhdr) + sizeof(struct iphdr);
  frame->bytes = data + HEADERS_BYTES;
  return 1;
}

// Whether the packet is a datagram for this aggregator, in one piece.
static inline int find_datagram(struct frame* frame) {
  if (!locate(frame, HEADERS_BYTES)) return 0;
  if (frame->ethernet->h_proto != bpf_htons(ETH_P_IP)) return 0;
  if (frame->ip->version != 4 || frame->ip->ihl != 5 || frame->ip->protocol != IPPROTO_UDP)
    return 0;
  if ((frame->ip->frag_off & bpf_htons(FRAGMENT_BITS)) != 0) return 0;
  const __u32 zero = 0;
  const struct phub_xdp_settings* own = bpf_map_lookup_elem(&settings, &zero);
  if (!own || frame->ip->daddr != own->address || frame->udp->dest != own->port) return 0;
  const __u32 udp_bytes = bpf_ntohs(frame->udp->len);
  if (udp_bytes < sizeof(struct udphdr)) return 0;
  if (bpf_ntohs(frame->ip->tot_len) != udp_bytes + sizeof(struct iphdr)) return 0;
  frame->length = udp_bytes - sizeof(struct udphdr);
  return (void*)frame->bytes + frame->length <= frame->end;
}

// `count` as a number that the verifier does not connect with it. Otherwise each length of a loop
// is a state of its own for all code after the loop, and the verifier gives up.
static inline __u32 disconnect(__u32 count) {
  asm volatile("" : "+r"(count));
  return count & 1023;
}

// The sum of the payload's integers. The length has been checked; `end` is for the verifier.
static inline __u32 sum_payload(const __u8* payload, const void* end, __u32 count) {
  __u32 total = 0;
  __u32 i = 0;
  count = disconnect(count);
  for (; i + UNROLLED <= count && i + UNROLLED <= PHUB_PACKET_COUNT_MAX; i += UNROLLED) {
    const __u32* words = (const __u32*)payload + i;
    if ((const void*)(words + UNROLLED) > end) return total;
#pragma unroll
    for (__u32 k = 0; k < UNROLLED; ++k) total += words[k];
  }
  for (; i < count && i < PHUB_PACKET_COUNT_MAX; ++i) {
    const __u32* word = (const __u32*)payload + i;
    if ((const void*)(word + 1) > end) return total;
    total += *word;
  }
  return total;
}

// Performs `each(values + j, words + j)` for all integers.
#define FOR_EACH_INTEGER(values, payload, end, count, each)                                 \
  do {                                                                                      \
    __u32 i_ = 0;                                                                           \
    __u32 n_ = disconnect(count);                                                           \
    for (; i_ + UNROLLED <= n_ && i_ + UNROLLED <= PHUB_PACKET_COUNT_MAX; i_ += UNROLLED) { \
      __u32* words_ = (__u32*)(payload) + i_;                                               \
      if ((void*)(words_ + UNROLLED) > (end)) {                                             \
        n_ = 0; /* cannot be; without it, the verifier tries more lengths */                \
        break;                                                                              \
      }                                                                                     \
      _Pragma("unroll") for (__u32 k_ = 0; k_ < UNROLLED; ++k_) {                           \
        each((values) + i_ + k_, words_ + k_);                                              \
      }                                                                                     \
    }                                                                                       \
    for (; i_ < n_ && i_ < PHUB_PACKET_COUNT_MAX; ++i_) {                                   \
      __u32* word_ = (__u32*)(payload) + i_;                                                \
      if ((void*)(word_ + 1) > (end)) break;                                                \
      each((values) + i_, word_);                                                           \
    }                                                                                       \
  } while (0)
#define STORE(value, word) *(value) = *(word)
#define ADD(value, word) *(value) += *(word)
// Also writes the sum to the packet, and adds it to the sum for the UDP checksum. The barrier keeps
// the compiler from having 16 sums at once, which the stack has no room for.
#define ADD_LAST(value, word)                     \
  do {                                            \
    const __u32 sum_ = (*(value)&keep) + *(word); \
    *(value) = sum_;                              \
    *(word) = sum_;                               \
    checksum += sum_;                             \
    asm volatile("" : "+r"(checksum));            \
  } while (0)

static inline void send_event(struct phub_xdp_counters* counts,
                              const struct phub_xdp_event* event) {
  if (bpf_ringbuf_output(&events, (void*)event, sizeof *event, 0) != 0) ++counts->events_lost;
}

static inline __u16 fold(__u64 sum) {
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return ~sum & 0xffff;
}

// Turns the contribution, whose payload is the sum now, into the sum's datagram. `checksum`: the
// sum of the payload.
static inline void make_sum(struct frame* frame, const struct phub_xdp_lease* lease,
                            const struct phub_xdp_hop* hop, const struct phub_xdp_event* event,
                            __u64 checksum) {
  struct phub_packet sum;
  phub_slot_sum(&event->slot, &event->packet, &sum);
  phub_packet_encode(&sum, &lease->lease.key, frame->bytes);
  __builtin_memcpy(frame->ethernet->h_dest, hop->to, 6);
  __builtin_memcpy(frame->ethernet->h_source, hop->from, 6);
  frame->ip->saddr = frame->ip->daddr;
  frame->ip->daddr = lease->lease.core_loop.address[1] >> 32;
  frame->ip->ttl = 64;
  frame->ip->check = 0;
  const __u32* ip = (const __u32*)frame->ip;
  frame->ip->check = fold((__u64)ip[0] + ip[1] + ip[2] + ip[3] + ip[4]);
  frame->udp->source = frame->udp->dest;
  frame->udp->dest = lease->lease.core_loop.port;
  const __u32* header = (const __u32*)frame->bytes;
#pragma unroll
  for (__u32 i = 0; i < PHUB_PACKET_BYTES / 4; ++i) checksum += header[i];
  checksum += (__u64)frame->ip->saddr + frame->ip->daddr + bpf_htons(IPPROTO_UDP) +
              frame->udp->source + frame->udp->dest + 2 * (__u32)frame->udp->len;
  const __u16 folded = fold(checksum);
  frame->udp->check = folded != 0 ? folded : 0xffff;  // 0: there is no checksum
}

// A good PAYLOAD. `may_redirect`: the packet is on an interface.
static inline int contribute(struct frame* frame, struct phub_xdp_lease* lease,
                             struct phub_xdp_event* event, struct phub_xdp_counters* counts,
                             int may_redirect) {
  const struct phub_packet* packet = &event->packet;
  const __u32 index = lease->first_slot + packet->slot;
  struct phub_xdp_slot* held = bpf_map_lookup_elem(&pool, &index);
  if (!held) return XDP_DROP;
  const __u32 number = packet->lease;
  struct phub_xdp_hop* hop = may_redirect ? bpf_map_lookup_elem(&hops, &number) : 0;
  __u8* const payload = frame->bytes + PHUB_PACKET_BYTES;
  const __u32 count = packet->count;
  __u64 checksum = 0;
#ifndef PHUB_XDP_NO_LOCK
  bpf_spin_lock(&held->lock);
#endif
  if (held->lease != number) {
#ifndef PHUB_XDP_NO_LOCK
    bpf_spin_unlock(&held->lock);
#endif
    ++counts->checks[PHUB_CHECK_WRONG_LEASE];
    return XDP_DROP;
  }
#ifdef PHUB_XDP_NO_PHASE
  event->packet.phase = held->slot.phase + (held->slot.state == PHUB_SLOT_SUMMED);
#endif
  const enum phub_verdict verdict =
      phub_slot_receive(&held->slot, packet, lease->lease.worker_count);
  const int is_last = verdict == PHUB_VERDICT_STORE_LAST || verdict == PHUB_VERDICT_ADD_LAST;
  if (verdict == PHUB_VERDICT_STORE) {
    FOR_EACH_INTEGER(held->values, payload, frame->end, count, STORE);
  } else if (verdict == PHUB_VERDICT_ADD) {
    FOR_EACH_INTEGER(held->values, payload, frame->end, count, ADD);
  } else if (is_last) {
    const __u32 keep = verdict == PHUB_VERDICT_ADD_LAST ? 0xffffffff : 0;
    FOR_EACH_INTEGER(held->values, payload, frame->end, count, ADD_LAST);
  }
  event->slot = held->slot;
#ifndef PHUB_XDP_NO_LOCK
  bpf_spin_unlock(&held->lock);
#endif
  COUNT(counts->checks, PHUB_CHECK_GOOD);
  COUNT(counts->kinds, packet->kind);
  COUNT(counts->verdicts, verdict);
  if (!is_last && verdict != PHUB_VERDICT_REFUSED) return XDP_DROP;
  if (is_last) __sync_fetch_and_add(&lease->sums, 1);
  if (!locate(frame, HEADERS_BYTES + PHUB_PACKET_BYTES)) return XDP_DROP;  // cannot be
  if (is_last && hop) {
    make_sum(frame, lease, hop, event, checksum);
    ++counts->sums;
    return bpf_redirect(hop->interface, 0);
  }
  event->verdict = verdict;
  send_event(counts, event);
  return XDP_DROP;
}

static inline int same_hop(const struct phub_xdp_hop* a, const struct phub_xdp_hop* b) {
  __u32 differs = a->interface ^ b->interface;
#pragma unroll
  for (int i = 0; i < 6; ++i) differs |= (a->to[i] ^ b->to[i]) | (a->from[i] ^ b->from[i]);
  return differs == 0;
}

static inline void learn_hop(const struct xdp_md* context, const struct frame* frame, __u32 lease) {
  struct phub_xdp_hop hop = {.interface = context->ingress_ifindex};
  __builtin_memcpy(hop.to, frame->ethernet->h_source, 6);
  __builtin_memcpy(hop.from, frame->ethernet->h_dest, 6);
  const struct phub_xdp_hop* known = bpf_map_lookup_elem(&hops, &lease);
  if (!known || !same_hop(known, &hop)) bpf_map_update_elem(&hops, &lease, &hop, BPF_ANY);
}

static inline int receive(struct xdp_md* context, int on_interface) {
  struct frame frame = {.context = context};
  if (!find_datagram(&frame)) return XDP_PASS;
  const __u32 zero = 0;
  struct phub_xdp_counters* counts = bpf_map_lookup_elem(&counters, &zero);
  if (!counts) return XDP_PASS;
  if (frame.length < PHUB_PACKET_BYTES || !locate(&frame, HEADERS_BYTES + PHUB_PACKET_BYTES)) {
    ++counts->checks[PHUB_CHECK_TRUNCATED];
    return XDP_DROP;
  }
  struct phub_xdp_event event = {};
  struct phub_xdp_lease* lease = 0;
  enum phub_check check =
      phub_packet_check_form(PHUB_KINDS_FROM_WORKERS | PHUB_KINDS_FROM_CORE_LOOP, frame.bytes,
                             frame.length, &event.packet);
  if (check == PHUB_CHECK_GOOD) {
    const __u32 number = event.packet.lease;
    lease = bpf_map_lookup_elem(&leases, &number);
    if (lease) {
      const struct phub_endpoint source = {
          .address = {0, (__u64)frame.ip->saddr << 32 | 0xffff0000}, .port = frame.udp->source};
      check = phub_packet_check_header(&lease->lease, frame.bytes, frame.length, &source,
                                       &event.packet);
    } else {
      check = PHUB_CHECK_WRONG_LEASE;
    }
  }
  if (check == PHUB_CHECK_OVERSIZED && on_interface) {
    ++counts->passed;
    return XDP_PASS;
  }
  if (check == PHUB_CHECK_GOOD) {
    if (sum_payload(frame.bytes + PHUB_PACKET_BYTES, frame.end, event.packet.count) !=
        event.packet.payload_sum)
      check = PHUB_CHECK_CORRUPT;
    if (!locate(&frame, HEADERS_BYTES + PHUB_PACKET_BYTES)) return XDP_DROP;
  }
  if (check != PHUB_CHECK_GOOD || !lease) {
    COUNT(counts->checks, check);
    return XDP_DROP;
  }
  if ((PHUB_KIND_BIT(event.packet.kind) & PHUB_KINDS_FROM_CORE_LOOP) != 0) {
    if (!on_interface) return XDP_DROP;  // the process handles these itself
    learn_hop(context, &frame, event.packet.lease);
    ++counts->passed;
    return XDP_PASS;
  }
  return contribute(&frame, lease, &event, counts, on_interface);
}

SEC("xdp") int aggregate(struct xdp_md* context) { return receive(context, 1); }

// Run by the process with a datagram that reached its socket.
SEC("xdp") int hand_in(struct xdp_md* context) { return receive(context, 0); }

char license_[] SEC("license") = "Apache-2.0";
