// A slot of an aggregator: it adds one block of integers of every worker, sends the sum to the core
// loop, and remembers the sum until the core loop has it. The rules are the same for the aggregator
// in user space and for the BPF program, which both include this header. C99 without a C library,
// as packet.h. The caller holds the slot's lock during phub_slot_receive() and until it has
// performed the verdict on the slot's values.
//
//   state       a contribution's phase is              verdict
//   COLLECTING  the slot's, the worker's bit is clear  add; if it was the last: SUMMED, send the
//                                                      sum
//   both        the slot's, the bit is set             drop
//   SUMMED, or  a later one                            reset to that phase, COLLECTING, add
//   no bit set
//   both        any other                              drop
//
//   state       a NACK's phase is                      the aggregator
//   SUMMED      the slot's                             sends the sum again
//   COLLECTING  the slot's                             says MISSING to workers whose bit is clear
//   SUMMED, or  a later one                            says MISSING to every worker
//   no bit set
//   both        any other                              drops it
// A NACK changes nothing.
//
// A slot skips phases: a position whose chunk has few blocks does not use the slots of the others.
// A worker sends a phase only when the core loop has assigned its position. The core loop does so
// only once it has all sums of the place's position before, and so of all earlier ones. Therefore:
//   - a reset never loses a sum that is still needed, and
//   - a packet of this phase or an older one is never added after the reset: its phase is not the
//     slot's any more.
// "Later" is the sign of the difference, so phases may wrap, but a slot that skips 2^31 phases in a
// row is lost: a stream must get a new lease before.
// The bitmap admits each contribution once. A slot of zeros is in phase 0, COLLECTING.
#pragma once

#include "common/aggregation/packet.h"

enum phub_slot_state { PHUB_SLOT_COLLECTING = 0, PHUB_SLOT_SUMMED = 1 };

struct phub_slot {
  __u64 workers;  // a bit for each worker whose contribution is in the values
  __u32 phase;
  __u32 payload_sum;
  __u16 count;
  __u8 state;
  __u8 exponent;       // the same in all contributions
  __u8 next_exponent;  // the maximum of all proposals
  __u8 zero[3];
};

enum phub_verdict {
  PHUB_VERDICT_STORE,       // the first contribution: copy the payload to the values
  PHUB_VERDICT_STORE_LAST,  // a lease with one worker: copy, then send the sum to the core loop
  PHUB_VERDICT_ADD,
  PHUB_VERDICT_ADD_LAST,  // add, then send the sum to the core loop
  // Answered REFUSED: exponent or count differ from those of the first contribution.
  PHUB_VERDICT_REFUSED,
  // Dropped without an answer.
  PHUB_VERDICT_REPEATED,  // the slot has this contribution
  PHUB_VERDICT_EARLY,     // a later phase, while this one is not complete
  PHUB_VERDICT_PHASE,     // an older phase
  PHUB_VERDICT_COUNT,
};

static inline __u64 phub_every_worker_bit(__u32 worker_count) {
  return worker_count >= 64 ? ~PHUB_CAST(__u64, 0) : (PHUB_CAST(__u64, 1) << worker_count) - 1;
}

static inline int phub_phase_is_later(__u32 phase, __u32 than) {
  return phase != than && phase - than < 0x80000000u;
}

// Whether a later phase may begin: nothing that is needed would be lost.
static inline int phub_slot_is_free(const struct phub_slot* slot) {
  return slot->state == PHUB_SLOT_SUMMED || slot->workers == 0;
}

// Handles a PAYLOAD that phub_packet_check() has found good.
static inline enum phub_verdict phub_slot_receive(struct phub_slot* slot,
                                                  const struct phub_packet* packet,
                                                  __u32 worker_count) {
  const __u64 bit = PHUB_CAST(__u64, 1) << (packet->worker % PHUB_WORKERS_MAX);
  if (phub_phase_is_later(packet->phase, slot->phase)) {
    if (!phub_slot_is_free(slot)) return PHUB_VERDICT_EARLY;
    slot->phase = packet->phase;
    slot->state = PHUB_SLOT_COLLECTING;
    slot->workers = 0;
  } else if (packet->phase != slot->phase) {
    return PHUB_VERDICT_PHASE;
  }
  if ((slot->workers & bit) != 0) return PHUB_VERDICT_REPEATED;
  const int first = slot->workers == 0;
  if (first) {
    slot->count = packet->count;
    slot->exponent = packet->exponent;
    slot->next_exponent = packet->next_exponent;
    slot->payload_sum = packet->payload_sum;
  } else {
    if (slot->count != packet->count || slot->exponent != packet->exponent)
      return PHUB_VERDICT_REFUSED;
    if (slot->next_exponent < packet->next_exponent) slot->next_exponent = packet->next_exponent;
    slot->payload_sum += packet->payload_sum;
  }
  slot->workers |= bit;
  if (slot->workers != phub_every_worker_bit(worker_count))
    return first ? PHUB_VERDICT_STORE : PHUB_VERDICT_ADD;
  slot->state = PHUB_SLOT_SUMMED;
  return first ? PHUB_VERDICT_STORE_LAST : PHUB_VERDICT_ADD_LAST;
}

// What a NACK about the slot's `phase` leads to.
struct phub_nacked {
  int send_sum;   // send the sum again
  __u64 missing;  // a bit for each worker that must send its contribution again
};
static inline struct phub_nacked phub_slot_nacked(const struct phub_slot* slot, __u32 phase,
                                                  __u32 worker_count) {
  const __u64 every = phub_every_worker_bit(worker_count);
  struct phub_nacked nacked = {0, 0};
  if (phase == slot->phase) {
    nacked.send_sum = slot->state == PHUB_SLOT_SUMMED;
    nacked.missing = every & ~slot->workers;
  } else if (phub_phase_is_later(phase, slot->phase) && phub_slot_is_free(slot)) {
    nacked.missing = every;
  }
  return nacked;
}

// Performs STORE and ADD on the slot's values. REQUIRES: count <= PHUB_PACKET_COUNT_MAX.
static inline void phub_slot_add(__u32* values, const __u8* payload, __u32 count, int first) {
  for (__u32 i = 0; i < count; ++i) {
    const __u32 value = phub_load32(payload + 4 * i);
    values[i] = first ? value : values[i] + value;
  }
}

// The header of the slot's sum, for the core loop.
static inline void phub_slot_sum(const struct phub_slot* slot, const struct phub_packet* packet,
                                 struct phub_packet* sum) {
  *sum = *packet;
  sum->kind = PHUB_PACKET_SUM;
  sum->worker = PHUB_EVERY_WORKER;
  sum->count = slot->count;
  sum->exponent = slot->exponent;
  sum->next_exponent = slot->next_exponent;
  sum->payload_sum = slot->payload_sum;
}

// The answer to the worker whose contribution was refused. It names the exponent of the slot.
static inline void phub_slot_refusal(const struct phub_slot* slot, const struct phub_packet* packet,
                                     struct phub_packet* answer) {
  *answer = *packet;
  answer->kind = PHUB_PACKET_REFUSED;
  answer->count = 0;
  answer->payload_sum = 0;
  answer->exponent = slot->exponent;
  answer->next_exponent = 0;
}
