// The aggregator's slot, compiled as C (in_c.c).
#pragma once

#include "common/aggregation/slot.h"

#ifdef __cplusplus
extern "C" {
#endif

// phub_packet_check() for packets from workers, then phub_slot_receive() and the addition.
// `verdict` is set only if the packet is good.
enum phub_check in_c_receive(const struct phub_lease* lease, struct phub_slot* slots, __u32* values,
                             const __u8* bytes, __u32 length, const struct phub_endpoint* source,
                             enum phub_verdict* verdict);

#ifdef __cplusplus
}
#endif
