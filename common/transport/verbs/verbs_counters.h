// Messages and copies of one verbs transport: written by its thread alone, read by anybody. Names
// are what phubctl stats prints: phub_verbs_<name>_total.
#pragma once

#include <array>
#include <cstddef>

#include "common/base/single_writer_number.h"

namespace phub::transport {

// messages_sent      whole messages, by whatever way
// slot_writes        gradients written into their slots (a client's)
// slot_arrivals      gradients that came in their slots (a daemon's)
// reply_writes       replies written into the worker's parameters
// inbox_messages     messages that went through the peer's inbox
// sends_copied       payloads copied on their way out, because they were not registered
// receives_copied    payloads copied out of the inbox
// bytes_copied       of both
// taken_sent         work requests that only tell what was taken
// immediates_refused immediates that named what is not the peer's to name; each closed its lane
// lanes_failed       lanes that the device or the peer's end broke
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
