// Counters of one core loop: written only by that loop (relaxed), read by any thread. phubctl stats
// prints them as phub_<name>_total. exposition.h describes their names on the metrics port.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/single_writer_number.h"

namespace phub::server {

// clang-format off
#define PHUB_CORE_COUNTERS(X)                                                                   \
  X(gradients) X(gradient_bytes) X(gradients_in_place) X(gradients_folded) X(rounds)            \
  X(replies) X(reply_bytes) X(replies_in_pass) X(replies_deferred) X(credits) X(pulls)          \
  X(duplicates_staged) X(duplicates_applied) X(records) X(snapshots)                            \
  X(rounds_queued) X(throttles) X(sums_told) X(decisions) X(rounds_skipped)                     \
  X(lanes_attached) X(lanes_closed) X(faults) X(staged_discarded)                               \
  X(refused_protocol) X(refused_incarnation) X(refused_epoch) X(refused_chunk_range)            \
  X(refused_slot_range) X(refused_slot_occupied) X(refused_payload_size) X(refused_type)        \
  X(refused_encoding) X(refused_address) X(refused_version) X(refused_kind) X(refused_stale)    \
  X(refused_gap) X(refused_record) X(refused_round) X(refused_plan) X(refused_peer)             \
  X(refused_decision) X(refused_member)                                                         \
  X(announcements) X(sum_blocks) X(sum_block_bytes) X(rounds_streamed) X(sum_datagrams_refused) \
  X(sum_nacks) X(parameter_blocks) X(parameter_block_bytes) X(parameter_blocks_again)           \
  X(partials) X(partial_bytes) X(results) X(result_bytes) X(partials_sent) X(results_sent)      \
  X(peer_bytes_sent) X(peer_overtakes)                                                          \
  X(exchange_memory_read_bytes) X(exchange_memory_written_bytes)                                \
  X(loop_runs) X(loop_blocks) X(busy_ns) X(events_delayed)
// clang-format on

enum class CoreCounter : std::size_t {
#define PHUB_NAME(name) name,
  PHUB_CORE_COUNTERS(PHUB_NAME)
#undef PHUB_NAME
      kCount
};
inline constexpr std::size_t kCoreCounterCount = static_cast<std::size_t>(CoreCounter::kCount);
inline constexpr std::array<const char*, kCoreCounterCount> kCoreCounterNames = {
#define PHUB_NAME(name) #name,
    PHUB_CORE_COUNTERS(PHUB_NAME)
#undef PHUB_NAME
};

class CoreCounters {
 public:
  void Add(CoreCounter counter, std::uint64_t value = 1) {
    values_[static_cast<std::size_t>(counter)].Add(value);
  }
  std::uint64_t Get(CoreCounter counter) const {
    return values_[static_cast<std::size_t>(counter)].Get();
  }

  // Number of commands that the loop has executed: release by the loop, acquire by control.
  std::atomic<std::uint64_t> commands_done{0};

 private:
  std::array<SingleWriterNumber, kCoreCounterCount> values_{};
};

}  // namespace phub::server
