// Counters of one verbs transport: written only by its thread, read by any thread. Their metrics
// are phub_verbs_<name>_total.
#pragma once

#include <array>
#include <cstddef>

#include "common/base/single_writer_number.h"

namespace phub::transport {

// Name and help text.
// clang-format off
#define PHUB_VERBS_COUNTERS(X)                                                                     \
  X(messages_sent, "Messages that core loops sent over RDMA.")                                     \
  X(slot_writes, "Gradients written into the peer's slots; always 0 on a daemon.")                 \
  X(slot_arrivals, "Gradients that workers wrote directly into their slots by RDMA.")              \
  X(reply_writes, "Replies written directly into workers' parameters by RDMA.")                    \
  X(inbox_messages, "Messages sent through the peer's inbox: all except direct replies.")          \
  X(sends_copied, "Payloads copied before an RDMA send: their memory is not registered.")          \
  X(receives_copied, "Payloads copied out of an inbox because they have no place of their own.")   \
  X(bytes_copied, "Payload bytes copied before an RDMA send or after an RDMA receive.")            \
  X(work_requests, "Work requests posted to RDMA devices.")                                        \
  X(doorbells, "Posts of one or more work requests to RDMA devices.")                              \
  X(taken_sent, "Work requests that only report to workers what was received.")                    \
  X(immediates_refused, "Invalid RDMA immediate values received; each closed its lane.")           \
  X(lanes_failed, "RDMA lanes that the device or the peer broke.")
// clang-format on

struct VerbsCounters {
#define PHUB_NAME(name, help) SingleWriterNumber name;
  PHUB_VERBS_COUNTERS(PHUB_NAME)
#undef PHUB_NAME
};

struct VerbsCounterField {
  const char* name = nullptr;
  const char* help = nullptr;
  SingleWriterNumber VerbsCounters::*value = nullptr;
};
inline constexpr auto kVerbsCounterFields = std::to_array<VerbsCounterField>({
#define PHUB_NAME(name, help) {"verbs_" #name, help, &VerbsCounters::name},
    PHUB_VERBS_COUNTERS(PHUB_NAME)
#undef PHUB_NAME
});

}  // namespace phub::transport
