#include "tests/unit/aggregation/in_c.h"

enum phub_check in_c_receive(const struct phub_lease* lease, struct phub_slot* slots, __u32* values,
                             const __u8* bytes, __u32 length, const struct phub_endpoint* source,
                             enum phub_verdict* verdict) {
  struct phub_packet packet;
  const enum phub_check check =
      phub_packet_check(lease, PHUB_KINDS_FROM_WORKERS, bytes, length, source, &packet);
  if (check != PHUB_CHECK_GOOD) return check;
  *verdict = phub_slot_receive(&slots[packet.slot], &packet, lease->worker_count);
  const int first = *verdict == PHUB_VERDICT_STORE || *verdict == PHUB_VERDICT_STORE_LAST;
  if (first || *verdict == PHUB_VERDICT_ADD || *verdict == PHUB_VERDICT_ADD_LAST) {
    phub_slot_add(values + packet.slot * lease->count_max, bytes + PHUB_PACKET_BYTES, packet.count,
                  first);
  }
  return check;
}
