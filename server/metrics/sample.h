// A snapshot of the daemon's numbers: control fills it in, exposition.h formats it. Plain data; any
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "server/metrics/counters.h"
#include "server/metrics/shard_metrics.h"
#include "server/metrics/turn_times.h"

namespace phub::server {

// The most jobs and tenants with metrics of their own: the running jobs that were created first,
// and the tenants that are first by name. The others are counted in `jobs_omitted` and
// `tenants_omitted`. This bounds the memory that names take in the monitoring system.
inline constexpr std::size_t kJobsSampledMax = 128;
inline constexpr std::size_t kTenantsSampledMax = 256;

// Likewise the groups of those jobs, in the order in which they were made.
inline constexpr std::size_t kGroupsSampledMax = 256;

// Sums over the core loops that serve a job or a group, or over a tenant's jobs.
struct WorkTotals {
  std::uint64_t gradients = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t reply_bytes = 0;
  std::uint64_t nonfinite_sums = 0;
  std::uint64_t nonfinite_gradients = 0;
  std::uint64_t straggler_wait_ns = 0;
  std::uint64_t round_duration_ns = 0;
  std::array<std::uint64_t, kRoundDurationBuckets> round_duration_buckets{};

  void Add(const ShardMetrics& metrics);
  void AddWork(const WorkMetrics& metrics);  // only the work that groups have, too
  void Add(const WorkTotals& other);
  std::uint64_t rounds() const;
};

// A rank's metrics summed over the shards of its job; see RankMetrics.
struct RankMetricsSum {
  std::uint64_t rounds_last = 0;
  std::uint64_t straggler_wait_ns = 0;
};

// See transport::TransportCounter.
struct TransportCount {
  const char* name = nullptr;
  const char* help = nullptr;
  std::uint64_t value = 0;
};

struct CoreSample {
  std::array<std::uint64_t, kCoreCounterCount> counters{};
  std::uint64_t commands_waiting = 0;
  std::vector<TransportCount> transport_counts;  // for every transport of the core loop
};

struct WorkerCounts {
  std::uint64_t awaited = 0;  // never joined, or has reserved its place and not committed it
  std::uint64_t live = 0;
  std::uint64_t lost = 0;  // lost; the job waits for it to come back
};

struct JobSample {
  std::string tenant;
  std::string job;
  std::uint64_t number = 0;  // in the order in which jobs were created
  WorkTotals totals;
  WorkerCounts workers;
  std::uint64_t slots = 0;  // over all lanes to this daemon
  std::uint64_t slots_used = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t parameter_bytes = 0;
};

// A group of a job's ranks.
struct GroupSample {
  std::string tenant;
  std::string job;
  std::string group;
  std::uint64_t id = 0;  // several groups of a job may have one name
  WorkTotals totals;
};

// The part of a quota of a cluster that the daemon may use.
struct GrantSample {
  const char* resource = nullptr;
  std::uint64_t amount = 0;
  std::uint64_t used = 0;
};

struct TenantSample {
  std::string tenant;
  WorkTotals totals;  // ended jobs included
  std::uint64_t jobs = 0;
  std::uint64_t live_workers = 0;
  std::uint64_t memory_bytes = 0;  // left_memory_bytes included
  std::uint64_t memory_quota_bytes = 0;
  std::uint64_t left_memory_bytes = 0;  // that processes of ended jobs still use
  std::vector<GrantSample> grants;      // of limited quotas
};

struct MetricsSample {
  std::string version;
  std::string commit;
  std::string simd_target;
  DurationNs uptime = 0;
  bool draining = false;
  bool state_disk_fault = false;  // changes of the control store cannot be written
  std::uint64_t changes_deferred = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_limit_bytes = 0;
  std::uint64_t jobs_running = 0;
  std::uint64_t jobs_ending = 0;  // ended, but core loops have not released them yet
  WorkerCounts workers;
  std::vector<CoreSample> cores;                // [core]
  std::vector<std::uint64_t> control_counters;  // [ControlCounter]
  AllTurnTimes turn_times{};                    // of control's lock
  std::vector<JobSample> jobs;                  // running jobs; (tenant, name) is unique
  std::vector<GroupSample> groups;              // those of `jobs`
  std::vector<TenantSample> tenants;
  std::uint64_t jobs_omitted = 0;
  std::uint64_t groups_omitted = 0;
  std::uint64_t tenants_omitted = 0;
};

}  // namespace phub::server
