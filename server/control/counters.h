// The counters of control: phub_<name>_total in `phubctl stats`. Under control's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace phub::server {

// clang-format off
#define PHUB_CONTROL_COUNTERS(X)                                                                 \
  X(joins) X(joins_refused_version) X(joins_refused_invalid) X(joins_refused_tenant)             \
  X(joins_refused_options) X(joins_refused_rank_held) X(joins_refused_rank_left)                 \
  X(joins_refused_capacity) X(joins_refused_draining) X(jobs_created) X(jobs_ended)              \
  X(jobs_failed) X(jobs_abandoned) X(key_batches) X(keys_added) X(keys_refused_invalid)          \
  X(keys_refused_mismatch) X(keys_refused_capacity) X(lanes_granted) X(lanes_admitted)           \
  X(lanes_refused_nonce) X(lanes_refused_job) X(lanes_refused_busy) X(lanes_dropped)             \
  X(barriers) X(barriers_refused) X(leaves) X(heartbeats) X(streams_attached)                    \
  X(streams_detached) X(workers_silent) X(lanes_silent) X(lanes_lost) X(core_faults)        \
  X(stall_reports)                                                                               \
  X(sessions_unknown) X(silence_forgiven) X(joins_refused_rack) X(jobs_superseded) X(commits)    \
  X(calls_uncommitted) X(reservations_lapsed) X(reservations_returned) X(jobs_ended_elsewhere)   \
  X(keys_refused_region) X(batches_granted) X(batches_fetched) X(batches_refused_job)            \
  X(batches_refused_nonce) X(shared_refused_process) X(ranks_lost) X(ranks_returned)             \
  X(ranks_restarted) X(ranks_awaited_in_vain) X(version_reports) X(snapshots_begun)              \
  X(snapshots_missed) X(snapshots_refused) X(snapshots_read) X(snapshots_abandoned)              \
  X(snapshot_bytes) X(loads_begun) X(loads_refused) X(loads_brought) X(load_bytes)               \
  X(jobs_evicted) X(joins_refused_quota) X(keys_refused_quota)                                   \
  X(calls_refused_anonymous) X(calls_refused_token) X(calls_refused_expired)                     \
  X(calls_refused_revoked) X(calls_refused_certificate) X(calls_refused_role)                    \
  X(calls_refused_tenant) X(audit_suppressed) X(lanes_refused_encryption)                        \
  X(lanes_refused_form) X(lanes_refused_plain) X(lanes_refused_key) X(lanes_refused_crowd)       \
  X(lanes_refused_late) X(joins_refused_plan) X(racks_silent) X(racks_restarted) X(peer_faults)  \
  X(peers_refused_place) X(peers_refused_version) X(peers_refused_configuration)                 \
  X(peer_messages_dropped) X(connections_refused_form) X(connections_refused_crowd)              \
  X(connections_refused_late) X(probes) X(probes_failed) X(probes_refused_busy)                  \
  X(probes_refused_invalid) X(probe_bytes) X(jobs_crowded_out) X(load_refusals_late)     \
  X(surveys) X(surveys_failed) X(topologies_applied) X(topologies_refused)                       \
  X(connections_refused_flood) X(connections_refused_memory) X(front_restarts)                   \
  X(certificates_refused) X(events_replaced) X(joins_refused_disk)                         \
  X(control_stalls) X(joins_awaited_in_vain) X(dumps) X(dumps_refused) X(dump_records_refused)  \
  X(log_lines_suppressed) X(calls_unfinished) X(requests_refused_size)             \
  X(requests_refused_invalid) X(lanes_refused_shortage)         \
  X(requests_refused_quota) X(connections_refused_quota) X(requests_refused_form) \
  X(key_removals) X(keys_removed) X(key_removals_refused)
// clang-format on

enum class ControlCounter : std::size_t {
#define PHUB_NAME(name) name,
  PHUB_CONTROL_COUNTERS(PHUB_NAME)
#undef PHUB_NAME
      kCount
};
inline constexpr std::size_t kControlCounterCount =
    static_cast<std::size_t>(ControlCounter::kCount);
inline constexpr std::array<const char*, kControlCounterCount> kControlCounterNames = {
#define PHUB_NAME(name) #name,
    PHUB_CONTROL_COUNTERS(PHUB_NAME)
#undef PHUB_NAME
};

class ControlCounters {
 public:
  void Add(ControlCounter counter, std::uint64_t value = 1) {
    values_[static_cast<std::size_t>(counter)] += value;
  }
  std::uint64_t Get(ControlCounter counter) const {
    return values_[static_cast<std::size_t>(counter)];
  }

 private:
  std::array<std::uint64_t, kControlCounterCount> values_{};
};

}  // namespace phub::server
