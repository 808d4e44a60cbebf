// The packets of sums in the network: workers send integers to an aggregator, which adds them and
// sends each sum to the daemon's core loop. Header, tag and checks. Pure functions, any thread.
//
// This header and slot.h are also C99 without a C library, with bounded loops only, so that a BPF
// program can include them. Therefore names begin with phub_, and there are no namespaces.
//
//   at  bytes
//    0   2  magic, 0x5350 ("PS" in memory)
//    2   1  version, 2
//    3   1  kind
//    4   4  lease: the number of the stream; never reused
//    8   4  phase: how often the slot has been used before, modulo 2^32
//   12   2  slot
//   14   2  count: integers of payload after the header; 0 for kinds without payload
//   16   1  worker: its number within the lease
//   17   1  exponent that the payload was scaled with (the exponent field of an IEEE f32)
//   18   1  next exponent: the sender's proposal for the slot's next phase; a sum has the maximum
//   19   1  zero
//   20   4  payload sum: the sum of the payload's integers modulo 2^32
//   24   8  tag: SipHash-2-4 of bytes 0 to 23, with the key of the lease
//   32      payload: count integers of 32 bits
// All numbers are little-endian. PARAMETERS and NACK use some fields in another way, see
// phub_parameters and phub_nack.
//
// The payload sum is checked because a program at the network driver sees UDP checksums that nobody
// has verified. It is linear: the payload sum of a sum is the sum of the contributions' payload
// sums. So the core loop also detects an aggregator that has lost or changed an addition.
//
// The tag keeps out strangers, other tenants and, through lease and phase, recorded packets. It
// does not keep out workers of the same job, which have the key, and it does not cover the payload:
// a host on the path can change integers so that their sum stays the same.
#pragma once

#include <linux/types.h>

#ifdef __cplusplus
#define PHUB_CAST(type, value) static_cast<type>(value)
#else
#define PHUB_CAST(type, value) ((type)(value))
#endif

#define PHUB_PACKET_BYTES 32u
#define PHUB_PACKET_MAGIC 0x5350u
#define PHUB_PACKET_VERSION 2u
// 848 integers and all headers fit into the 3506 bytes that a program at the driver gets in one
// piece.
#define PHUB_PACKET_COUNT_MAX 848u
#define PHUB_WORKERS_MAX 64u    // bits of a slot's bitmap
#define PHUB_EVERY_WORKER 255u  // in packets that concern no single worker

enum phub_packet_kind {
  // From a worker to the aggregator.
  PHUB_PACKET_PAYLOAD = 1,
  // From the aggregator to a worker, without payload.
  PHUB_PACKET_MISSING = 2,  // its contribution has not arrived: send it again
  PHUB_PACKET_REFUSED = 3,  // another worker's contribution has another exponent or count
  // From the aggregator to the core loop.
  PHUB_PACKET_SUM = 4,
  // From the core loop to the aggregator: which sums of a position have not arrived.
  PHUB_PACKET_NACK = 5,
  // From the core loop to workers, to all or to one: a block of a chunk's new version. The
  // aggregator forwards it unchanged.
  PHUB_PACKET_PARAMETERS = 6,
  PHUB_PACKET_KINDS,  // one more than the last
};

struct phub_packet {
  __u32 lease;
  __u32 phase;
  __u32 payload_sum;
  __u16 slot;
  __u16 count;
  __u8 kind;
  __u8 worker;
  __u8 exponent;
  __u8 next_exponent;
};

// What a PARAMETERS packet is about. In its header, `phase` has the version, `exponent` the chunk's
// low byte, `next_exponent` its high byte, and `slot` the block. The version makes a recorded
// packet useless: a worker takes only blocks of the version that it waits for.
struct phub_parameters {
  __u32 version;  // modulo 2^32
  __u16 chunk;
  __u16 block;  // the payload's place, in units of the lease's count_max integers
};

// What a NACK is about. In its header, `slot` is the position's first one, and `exponent` and
// `next_exponent` have the number, low byte first. Bit i % 32 of the payload's integer i / 32 is
// set if the sum of slot + i has not arrived.
struct phub_nack {
  // The core loop counts its NACKs, modulo 2^16. The aggregator handles only later ones, so that a
  // recorded one that a stranger repeats has no effect.
  __u16 number;
  __u16 slot;
};

struct phub_lease_key {
  __u64 words[2];
};

// An address (IPv4 as mapped to IPv6) and a port, in the same byte order everywhere.
struct phub_endpoint {
  __u64 address[2];
  __u16 port;
};

// What control grants. Slots are zeroed before it takes effect. It ends when a worker's process is
// replaced, when the aggregator restarts and when the job ends.
struct phub_lease {
  __u32 number;
  __u32 slot_count;    // slots are 0 to slot_count - 1
  __u32 worker_count;  // at most PHUB_WORKERS_MAX
  __u32 count_max;     // at most PHUB_PACKET_COUNT_MAX
  struct phub_lease_key key;
  struct phub_endpoint aggregator;
  struct phub_endpoint core_loop;
  struct phub_endpoint workers[PHUB_WORKERS_MAX];
};

// What is wrong with a packet; one counter each. All are dropped.
enum phub_check {
  PHUB_CHECK_GOOD,
  PHUB_CHECK_TRUNCATED,     // shorter than its header, or than its header says
  PHUB_CHECK_FOREIGN,       // magic, version or zero byte
  PHUB_CHECK_WRONG_KIND,    // unknown, or not for this receiver
  PHUB_CHECK_WRONG_LEASE,   // an old lease, or a lease that was never granted
  PHUB_CHECK_WRONG_WORKER,  // not a number of this lease
  PHUB_CHECK_WRONG_SOURCE,  // not the address and port of the one who may send this
  PHUB_CHECK_FORGED,        // the tag
  PHUB_CHECK_WRONG_SLOT,
  PHUB_CHECK_OVERSIZED,  // longer than its header says, or more integers than the lease allows
  PHUB_CHECK_CORRUPT,    // the payload sum
  PHUB_CHECK_COUNT,
};

// Sets of kinds for phub_packet_check().
#define PHUB_KIND_BIT(kind) (1u << (kind))
#define PHUB_KINDS_FROM_WORKERS PHUB_KIND_BIT(PHUB_PACKET_PAYLOAD)
#define PHUB_KINDS_FROM_CORE_LOOP \
  (PHUB_KIND_BIT(PHUB_PACKET_NACK) | PHUB_KIND_BIT(PHUB_PACKET_PARAMETERS))
#define PHUB_KINDS_WITH_PAYLOAD \
  (PHUB_KIND_BIT(PHUB_PACKET_PAYLOAD) | PHUB_KIND_BIT(PHUB_PACKET_SUM) | PHUB_KINDS_FROM_CORE_LOOP)
#define PHUB_KINDS_TO_WORKERS                                                \
  (PHUB_KIND_BIT(PHUB_PACKET_MISSING) | PHUB_KIND_BIT(PHUB_PACKET_REFUSED) | \
   PHUB_KIND_BIT(PHUB_PACKET_PARAMETERS))
#define PHUB_KINDS_TO_CORE_LOOP PHUB_KIND_BIT(PHUB_PACKET_SUM)

#ifdef __bpf__
// Programs in the kernel are little-endian here. clang does not join loads of bytes for them.
#define PHUB_DEFINE_ACCESS(bits)                                                                  \
  static inline __u##bits phub_load##bits(const __u8* bytes) { return *(const __u##bits*)bytes; } \
  static inline void phub_store##bits(__u8* bytes, __u##bits value) { *(__u##bits*)bytes = value; }
PHUB_DEFINE_ACCESS(16)
PHUB_DEFINE_ACCESS(32)
PHUB_DEFINE_ACCESS(64)
#else
static inline __u16 phub_load16(const __u8* bytes) {
  return PHUB_CAST(__u16, bytes[0] | (bytes[1] << 8));
}

static inline __u32 phub_load32(const __u8* bytes) {
  return phub_load16(bytes) | (PHUB_CAST(__u32, phub_load16(bytes + 2)) << 16);
}

static inline __u64 phub_load64(const __u8* bytes) {
  return phub_load32(bytes) | (PHUB_CAST(__u64, phub_load32(bytes + 4)) << 32);
}

static inline void phub_store16(__u8* bytes, __u32 value) {
  bytes[0] = PHUB_CAST(__u8, value & 0xffu);
  bytes[1] = PHUB_CAST(__u8, (value >> 8) & 0xffu);
}

static inline void phub_store32(__u8* bytes, __u32 value) {
  phub_store16(bytes, value);
  phub_store16(bytes + 2, value >> 16);
}

static inline void phub_store64(__u8* bytes, __u64 value) {
  phub_store32(bytes, PHUB_CAST(__u32, value & 0xffffffffu));
  phub_store32(bytes + 4, PHUB_CAST(__u32, value >> 32));
}
#endif

static inline __u64 phub_rotate(__u64 value, int bits) {
  return (value << bits) | (value >> (64 - bits));
}

static inline void phub_siphash_rounds(__u64 v[4], int rounds) {
  for (int i = 0; i < rounds; ++i) {
    v[0] += v[1];
    v[1] = phub_rotate(v[1], 13) ^ v[0];
    v[0] = phub_rotate(v[0], 32);
    v[2] += v[3];
    v[3] = phub_rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = phub_rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = phub_rotate(v[1], 17) ^ v[2];
    v[2] = phub_rotate(v[2], 32);
  }
}

// SipHash-2-4 of `words` times 8 bytes; at most 31 words.
static inline __u64 phub_siphash(const struct phub_lease_key* key, const __u8* bytes, __u32 words) {
  __u64 v[4] = {key->words[0] ^ 0x736f6d6570736575u, key->words[1] ^ 0x646f72616e646f6du,
                key->words[0] ^ 0x6c7967656e657261u, key->words[1] ^ 0x7465646279746573u};
  for (__u32 i = 0; i < words; ++i) {
    const __u64 word = phub_load64(bytes + 8 * i);
    v[3] ^= word;
    phub_siphash_rounds(v, 2);
    v[0] ^= word;
  }
  const __u64 last = PHUB_CAST(__u64, words * 8) << 56;
  v[3] ^= last;
  phub_siphash_rounds(v, 2);
  v[0] ^= last;
  v[2] ^= 0xff;
  phub_siphash_rounds(v, 4);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static inline __u64 phub_packet_tag(const struct phub_lease_key* key, const __u8* bytes) {
  return phub_siphash(key, bytes, 3);
}

// The sum of the payload's integers. REQUIRES: count <= PHUB_PACKET_COUNT_MAX.
static inline __u32 phub_payload_sum(const __u8* payload, __u32 count) {
  __u32 sum = 0;
  for (__u32 i = 0; i < count; ++i) sum += phub_load32(payload + 4 * i);
  return sum;
}

// Writes the header, with its tag.
static inline void phub_packet_encode(const struct phub_packet* packet,
                                      const struct phub_lease_key* key,
                                      __u8 bytes[PHUB_PACKET_BYTES]) {
  phub_store16(bytes, PHUB_PACKET_MAGIC);
  bytes[2] = PHUB_PACKET_VERSION;
  bytes[3] = packet->kind;
  phub_store32(bytes + 4, packet->lease);
  phub_store32(bytes + 8, packet->phase);
  phub_store16(bytes + 12, packet->slot);
  phub_store16(bytes + 14, packet->count);
  bytes[16] = packet->worker;
  bytes[17] = packet->exponent;
  bytes[18] = packet->next_exponent;
  bytes[19] = 0;
  phub_store32(bytes + 20, packet->payload_sum);
  phub_store64(bytes + 24, phub_packet_tag(key, bytes));
}

// Reads a header of PHUB_PACKET_BYTES without any check.
static inline void phub_packet_decode(const __u8* bytes, struct phub_packet* packet) {
  packet->kind = bytes[3];
  packet->lease = phub_load32(bytes + 4);
  packet->phase = phub_load32(bytes + 8);
  packet->slot = phub_load16(bytes + 12);
  packet->count = phub_load16(bytes + 14);
  packet->worker = bytes[16];
  packet->exponent = bytes[17];
  packet->next_exponent = bytes[18];
  packet->payload_sum = phub_load32(bytes + 20);
}

static inline void phub_packet_set_parameters(struct phub_packet* packet,
                                              const struct phub_parameters* parameters) {
  packet->kind = PHUB_PACKET_PARAMETERS;
  packet->phase = parameters->version;
  packet->slot = parameters->block;
  packet->exponent = PHUB_CAST(__u8, parameters->chunk & 0xffu);
  packet->next_exponent = PHUB_CAST(__u8, parameters->chunk >> 8);
}

static inline void phub_packet_get_parameters(const struct phub_packet* packet,
                                              struct phub_parameters* parameters) {
  parameters->version = packet->phase;
  parameters->block = packet->slot;
  parameters->chunk = PHUB_CAST(__u16, packet->exponent | (packet->next_exponent << 8));
}

static inline void phub_packet_set_nack(struct phub_packet* packet, const struct phub_nack* nack) {
  packet->kind = PHUB_PACKET_NACK;
  packet->worker = PHUB_EVERY_WORKER;
  packet->slot = nack->slot;
  packet->exponent = PHUB_CAST(__u8, nack->number & 0xffu);
  packet->next_exponent = PHUB_CAST(__u8, nack->number >> 8);
}

static inline void phub_packet_get_nack(const struct phub_packet* packet, struct phub_nack* nack) {
  nack->slot = packet->slot;
  nack->number = PHUB_CAST(__u16, packet->exponent | (packet->next_exponent << 8));
}

// Whether a NACK with this number may be handled after that one.
static inline int phub_nack_is_later(__u16 number, __u16 than) {
  const __u16 difference = PHUB_CAST(__u16, number - than);
  return difference != 0 && difference < 0x8000u;
}

static inline int phub_endpoint_equals(const struct phub_endpoint* a,
                                       const struct phub_endpoint* b) {
  return a->address[0] == b->address[0] && a->address[1] == b->address[1] && a->port == b->port;
}

// Whether the packet's worker is one of the lease, and `source` may send such a packet.
static inline enum phub_check phub_packet_check_sender(const struct phub_lease* lease,
                                                       const struct phub_endpoint* source,
                                                       const struct phub_packet* packet) {
  const __u32 for_all =
      PHUB_KINDS_FROM_CORE_LOOP | PHUB_KIND_BIT(PHUB_PACKET_SUM);  // may name no worker
  const __u32 bit = PHUB_KIND_BIT(packet->kind);
  if (packet->worker >= lease->worker_count || packet->worker >= PHUB_WORKERS_MAX) {
    if (packet->worker != PHUB_EVERY_WORKER || (bit & for_all) == 0) return PHUB_CHECK_WRONG_WORKER;
  }
  if ((bit & PHUB_KINDS_FROM_WORKERS) != 0) {
    return phub_endpoint_equals(source, &lease->workers[packet->worker % PHUB_WORKERS_MAX])
               ? PHUB_CHECK_GOOD
               : PHUB_CHECK_WRONG_SOURCE;
  }
  if (phub_endpoint_equals(source, &lease->aggregator)) return PHUB_CHECK_GOOD;
  if ((bit & PHUB_KINDS_FROM_CORE_LOOP) != 0 && phub_endpoint_equals(source, &lease->core_loop))
    return PHUB_CHECK_GOOD;
  return PHUB_CHECK_WRONG_SOURCE;
}

// Whether the slot exists, and the length is what the header says.
static inline enum phub_check phub_packet_check_length(const struct phub_lease* lease, __u32 length,
                                                       const struct phub_packet* packet) {
  if (packet->slot >= lease->slot_count) return PHUB_CHECK_WRONG_SLOT;
  if (packet->count > lease->count_max || packet->count > PHUB_PACKET_COUNT_MAX)
    return PHUB_CHECK_OVERSIZED;
  if (packet->count != 0 && (PHUB_KIND_BIT(packet->kind) & PHUB_KINDS_WITH_PAYLOAD) == 0)
    return PHUB_CHECK_OVERSIZED;
  if (length < PHUB_PACKET_BYTES + 4u * packet->count) return PHUB_CHECK_TRUNCATED;
  if (length > PHUB_PACKET_BYTES + 4u * packet->count) return PHUB_CHECK_OVERSIZED;
  return PHUB_CHECK_GOOD;
}

// Whether the datagram may be a packet at all. Fills `packet` if so.
static inline enum phub_check phub_packet_check_form(__u32 kinds, const __u8* bytes, __u32 length,
                                                     struct phub_packet* packet) {
  if (length < PHUB_PACKET_BYTES) return PHUB_CHECK_TRUNCATED;
  if (phub_load16(bytes) != PHUB_PACKET_MAGIC || bytes[2] != PHUB_PACKET_VERSION || bytes[19] != 0)
    return PHUB_CHECK_FOREIGN;
  phub_packet_decode(bytes, packet);
  if (packet->kind >= 32 || (kinds & PHUB_KIND_BIT(packet->kind)) == 0)
    return PHUB_CHECK_WRONG_KIND;
  return PHUB_CHECK_GOOD;
}

// Everything about a packet whose form is good, except the payload sum.
static inline enum phub_check phub_packet_check_header(const struct phub_lease* lease,
                                                       const __u8* bytes, __u32 length,
                                                       const struct phub_endpoint* source,
                                                       const struct phub_packet* packet) {
  if (lease->number == 0 || packet->lease != lease->number) return PHUB_CHECK_WRONG_LEASE;
  const enum phub_check sender = phub_packet_check_sender(lease, source, packet);
  if (sender != PHUB_CHECK_GOOD) return sender;
  if (phub_load64(bytes + 24) != phub_packet_tag(&lease->key, bytes)) return PHUB_CHECK_FORGED;
  return phub_packet_check_length(lease, length, packet);
}

// Checks a datagram of `length` bytes from `source`, the cheapest checks first. `kinds`: the kinds
// that this receiver handles. Fills `packet` if the datagram is good; the payload follows the
// header.
static inline enum phub_check phub_packet_check(const struct phub_lease* lease, __u32 kinds,
                                                const __u8* bytes, __u32 length,
                                                const struct phub_endpoint* source,
                                                struct phub_packet* packet) {
  enum phub_check check = phub_packet_check_form(kinds, bytes, length, packet);
  if (check == PHUB_CHECK_GOOD)
    check = phub_packet_check_header(lease, bytes, length, source, packet);
  if (check == PHUB_CHECK_GOOD &&
      phub_payload_sum(bytes + PHUB_PACKET_BYTES, packet->count) != packet->payload_sum)
    return PHUB_CHECK_CORRUPT;
  return check;
}
