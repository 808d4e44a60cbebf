// Counters of one verbs transport: written only by its thread, read by any thread. phubctl stats
// prints them as phub_verbs_<name>_total.
#pragma once

#include <array>
#include <cstddef>

#include "common/base/single_writer_number.h"

namespace phub::transport {

// messages_sent      messages sent completely, by any path
// slot_writes        gradients written to their slots (clients)
// slot_arrivals      gradients received in their slots (daemons)
// reply_writes       replies written to the worker's parameters
// inbox_messages     messages sent through the peer's inbox
// sends_copied       sent payloads that were copied, because they were not in registered memory
// receives_copied    received payloads that were copied out of the inbox
// bytes_copied       bytes of both
// taken_sent         work requests that only report what was received (kTaken)
// immediates_refused immediates with a slot or chunk that the peer may not use; each closed its
// lane lanes_failed       lanes that failed because of the device or the peer
// clang-format off
#define PHUB_VERBS_COUNTERS(X)                                                      \
  X(messages_sent) X(slot_writes) X(slot_arrivals) X(reply_writes) X(inbox_messages) \
  X(sends_copied) X(receives_copied) X(bytes_copied) X(work_requests) X(doorbells)   \
  X(taken_sent) X(immediates_refused) X(lanes_failed)
// clang-format on

struct VerbsCounters {
#define PHUB_NAME(name) SingleWriterNumber name;
  PHUB_VERBS_COUNTERS(PHUB_NAME)
#undef PHUB_NAME
};

struct VerbsCounterField {
  const char* name = nullptr;
  SingleWriterNumber VerbsCounters::*value = nullptr;
};
inline constexpr auto kVerbsCounterFields = std::to_array<VerbsCounterField>({
#define PHUB_NAME(name) {"verbs_" #name, &VerbsCounters::name},
    PHUB_VERBS_COUNTERS(PHUB_NAME)
#undef PHUB_NAME
});

}  // namespace phub::transport
