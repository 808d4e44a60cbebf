#include "server/metrics/exposition.h"

#include <fmt/format.h>

#include <tuple>
#include <vector>

#include "common/http/text_format.h"
#include "server/control/counters.h"

namespace phub::server {
namespace {

using http::Labels;
using http::TextFormat;
using Type = TextFormat::Type;

// One sample of a counter's family: the labels core and reason, and the value.
struct CounterSample {
  std::string core;
  std::string reason;
  std::uint64_t value = 0;
};
using CounterFamilies = std::map<std::string, std::vector<CounterSample>>;

// Sums reasons over core loops: the core loop does not matter, and time series are expensive.
void AddReason(std::vector<CounterSample>& samples, const std::string& reason,
               std::uint64_t value) {
  for (CounterSample& sample : samples) {
    if (sample.reason != reason) continue;
    sample.value += value;
    return;
  }
  samples.push_back({"", reason, value});
}

CounterFamilies GroupCounters(const MetricsSample& sample) {
  CounterFamilies families;
  for (std::size_t core = 0; core < sample.cores.size(); ++core) {
    for (std::size_t i = 0; i < kCoreCounterCount; ++i) {
      if (static_cast<CoreCounter>(i) == CoreCounter::busy_ns) continue;  // see WriteCores
      const CounterFamily family = FamilyOf(kCoreCounterNames[i]);
      const std::uint64_t value = sample.cores[core].counters[i];
      if (family.reason.empty()) {
        families[family.name].push_back({fmt::format("{}", core), "", value});
      } else {
        AddReason(families[family.name], family.reason, value);
      }
    }
  }
  for (std::size_t core = 0; core < sample.cores.size(); ++core) {
    for (const TransportCount& count : sample.cores[core].transport_counts)
      families[count.name].push_back({fmt::format("{}", core), "", count.value});
  }
  for (std::size_t i = 0; i < sample.control_counters.size(); ++i) {
    const CounterFamily family = FamilyOf(kControlCounterNames[i]);
    families[family.name].push_back({"", family.reason, sample.control_counters[i]});
  }
  return families;
}

// The help text of a counter, whether core loops, control or a transport count it.
std::string_view HelpOfFamily(const MetricsSample& sample, std::string_view family) {
  for (const CoreSample& core : sample.cores) {
    for (const TransportCount& count : core.transport_counts)
      if (family == count.name) return count.help;
  }
  return HelpOf(family);
}

void WriteCounters(const MetricsSample& sample, TextFormat& text) {
  for (const auto& [family, samples] : GroupCounters(sample)) {
    text.BeginFamily(fmt::format("phub_{}_total", family), Type::kCounter,
                     HelpOfFamily(sample, family));
    for (const CounterSample& one : samples) {
      text.Add(one.value, {{"core", one.core}, {"reason", one.reason}});
    }
  }
}

void WriteWorkers(const WorkerCounts& workers, TextFormat& text, const JobSample* job = nullptr) {
  const std::string_view tenant = job != nullptr ? std::string_view(job->tenant) : "";
  const std::string_view name = job != nullptr ? std::string_view(job->job) : "";
  for (const auto& [state, count] :
       {std::pair<std::string_view, std::uint64_t>{"awaited", workers.awaited},
        {"live", workers.live},
        {"lost", workers.lost}}) {
    text.Add(count, {{"tenant", tenant}, {"job", name}, {"state", state}});
  }
}

void WriteDaemon(const MetricsSample& sample, TextFormat& text) {
  text.BeginFamily("phub_build_info", Type::kGauge,
                   "Always 1; the labels identify the build of phubd.");
  text.Add(1,
           {{"version", sample.version}, {"commit", sample.commit}, {"simd", sample.simd_target}});
  text.BeginFamily("phub_uptime_seconds", Type::kGauge, "Time since the daemon started.");
  text.AddSeconds(sample.uptime);
  text.BeginFamily("phub_draining", Type::kGauge,
                   "1 while the daemon drains and accepts no new jobs.");
  text.Add(sample.draining ? 1 : 0);
  text.BeginFamily("phub_state_disk_fault", Type::kGauge,
                   "1 while changes of tenants and tokens cannot be written to state_dir.");
  text.Add(sample.state_disk_fault ? 1 : 0);
  text.BeginFamily(
      "phub_changes_deferred", Type::kGauge,
      "Changes of administrators, and audit entries, that wait to be written to the store.");
  text.Add(sample.changes_deferred);
  text.BeginFamily("phub_memory_reserved_bytes", Type::kGauge, "Memory that jobs have reserved.");
  text.Add(sample.memory_bytes);
  text.BeginFamily("phub_memory_limit_bytes", Type::kGauge,
                   "Memory that all jobs together may reserve (memory_max).");
  text.Add(sample.memory_limit_bytes);
  text.BeginFamily("phub_jobs", Type::kGauge,
                   "Running jobs, and ended jobs whose memory is not released yet.");
  text.Add(sample.jobs_running, {{"state", "running"}});
  text.Add(sample.jobs_ending, {{"state", "ending"}});
  text.BeginFamily("phub_workers", Type::kGauge, "Ranks of running jobs, by state.");
  WriteWorkers(sample.workers, text);
  text.BeginFamily("phub_metrics_omitted", Type::kGauge,
                   "Jobs, groups and tenants left out of the metrics because there are too many.");
  text.Add(sample.jobs_omitted, {{"kind", "job"}});
  text.Add(sample.groups_omitted, {{"kind", "group"}});
  text.Add(sample.tenants_omitted, {{"kind", "tenant"}});
}

void WriteCores(const MetricsSample& sample, TextFormat& text) {
  text.BeginFamily("phub_core_busy_seconds_total", Type::kCounter,
                   "Time that the core loop was busy; its rate is the utilization.");
  for (std::size_t core = 0; core < sample.cores.size(); ++core) {
    const auto busy = static_cast<std::size_t>(CoreCounter::busy_ns);
    text.AddSeconds(static_cast<DurationNs>(sample.cores[core].counters[busy]),
                    {{"core", fmt::format("{}", core)}});
  }
  text.BeginFamily("phub_commands_waiting", Type::kGauge,
                   "Commands that wait for room in the core loop's queue.");
  for (std::size_t core = 0; core < sample.cores.size(); ++core) {
    text.Add(sample.cores[core].commands_waiting, {{"core", fmt::format("{}", core)}});
  }
}

void WriteTurns(const MetricsSample& sample, TextFormat& text) {
  text.BeginFamily("phub_control_lock_seconds", Type::kHistogram,
                   "Time that control's lock was held without a break, by what held it.");
  for (std::size_t kind = 0; kind < kTurnKindNames.size(); ++kind) {
    const TurnTimes& times = sample.turn_times[kind];
    text.AddHistogram({kRoundDurationBounds.data(), times.buckets.data(),
                       kRoundDurationBounds.size(), times.total_ns},
                      {{"by", kTurnKindNames[kind]}});
  }
}

// Writes a family with a sample for each job, or for each tenant.
template <typename Owner, typename Add>
void WriteEach(const std::vector<Owner>& owners, TextFormat& text, std::string_view name, Type type,
               std::string_view help, Add add) {
  text.BeginFamily(name, type, help);
  for (const Owner& owner : owners) add(owner);
}

void WriteJobWork(const MetricsSample& sample, TextFormat& text) {
  const auto each = [&](std::string_view name, std::string_view help,
                        std::uint64_t WorkTotals::*member) {
    WriteEach(sample.jobs, text, name, Type::kCounter, help, [&](const JobSample& job) {
      text.Add(job.totals.*member, {{"tenant", job.tenant}, {"job", job.job}});
    });
  };
  each("phub_job_gradients_total", "Gradients of chunks that the job's workers pushed.",
       &WorkTotals::gradients);
  each("phub_job_gradient_bytes_total", "Payload of the gradients that the job's workers pushed.",
       &WorkTotals::gradient_bytes);
  each("phub_job_reply_bytes_total", "Payload of the replies to the job's workers.",
       &WorkTotals::reply_bytes);
  each("phub_job_nonfinite_sums_total", "Sums of chunks that contain NaN or infinity.",
       &WorkTotals::nonfinite_sums);
  each("phub_job_nonfinite_gradients_total",
       "Gradients of chunks whose NaN or infinity ended up in a sum.",
       &WorkTotals::nonfinite_gradients);
  WriteEach(sample.jobs, text, "phub_job_straggler_wait_seconds_total", Type::kCounter,
            "Time that rounds waited only for their last rank, added up over all chunks.",
            [&](const JobSample& job) {
              text.AddSeconds(static_cast<DurationNs>(job.totals.straggler_wait_ns),
                              {{"tenant", job.tenant}, {"job", job.job}});
            });
  WriteEach(sample.jobs, text, "phub_job_round_duration_seconds", Type::kHistogram,
            "Duration of rounds of chunks, from the first gradient to the last.",
            [&](const JobSample& job) {
              text.AddHistogram(
                  {kRoundDurationBounds.data(), job.totals.round_duration_buckets.data(),
                   kRoundDurationBounds.size(), job.totals.round_duration_ns},
                  {{"tenant", job.tenant}, {"job", job.job}});
            });
}

void WriteGroups(const MetricsSample& sample, TextFormat& text) {
  const auto each = [&](std::string_view name, std::string_view help, auto add) {
    text.BeginFamily(name, Type::kCounter, help);
    for (const GroupSample& group : sample.groups) {
      const std::string id = fmt::format("{}", group.id);
      add(group.totals,
          Labels{{"tenant", group.tenant}, {"job", group.job}, {"group", group.group}, {"id", id}});
    }
  };
  each("phub_group_gradient_bytes_total", "Payload of the gradients that the group's ranks pushed.",
       [&](const WorkTotals& totals, Labels labels) { text.Add(totals.gradient_bytes, labels); });
  each("phub_group_reply_bytes_total", "Payload of the replies to the group's ranks.",
       [&](const WorkTotals& totals, Labels labels) { text.Add(totals.reply_bytes, labels); });
  each("phub_group_rounds_total", "Rounds of chunks that the group completed.",
       [&](const WorkTotals& totals, Labels labels) { text.Add(totals.rounds(), labels); });
  each("phub_group_round_seconds_total",
       "Duration of the group's rounds, from first gradient to last, added up over all chunks.",
       [&](const WorkTotals& totals, Labels labels) {
         text.AddSeconds(static_cast<DurationNs>(totals.round_duration_ns), labels);
       });
  each("phub_group_straggler_wait_seconds_total",
       "Time that the group's rounds waited only for their last rank, added up over all chunks.",
       [&](const WorkTotals& totals, Labels labels) {
         text.AddSeconds(static_cast<DurationNs>(totals.straggler_wait_ns), labels);
       });
}

void WriteCheckpoint(const MetricsSample& sample, TextFormat& text) {
  const auto each = [&](std::string_view name, std::string_view help,
                        std::uint64_t JobSample::*member) {
    WriteEach(sample.jobs, text, name, Type::kGauge, help, [&](const JobSample& job) {
      text.Add(job.*member, {{"tenant", job.tenant}, {"job", job.job}});
    });
  };
  each("phub_job_memory_bytes", "Memory that the job has reserved.", &JobSample::memory_bytes);
  each("phub_job_parameter_bytes", "Size of the job's keys on the whole rack.",
       &JobSample::parameter_bytes);
  each("phub_job_slots", "Staging slots of all lanes of the job.", &JobSample::slots);
  each("phub_job_slots_used", "Staging slots that hold a gradient.", &JobSample::slots_used);
  WriteEach(sample.jobs, text, "phub_job_workers", Type::kGauge, "Ranks of the job, by state.",
            [&](const JobSample& job) { WriteWorkers(job.workers, text, &job); });
}

void WriteTenants(const MetricsSample& sample, TextFormat& text) {
  const auto gauge = [&](std::string_view name, std::string_view help,
                         std::uint64_t TenantSample::*member) {
    WriteEach(sample.tenants, text, name, Type::kGauge, help, [&](const TenantSample& tenant) {
      text.Add(tenant.*member, {{"tenant", tenant.tenant}});
    });
  };
  gauge("phub_tenant_jobs", "Running jobs of the tenant.", &TenantSample::jobs);
  gauge("phub_tenant_live_workers", "Live workers of the tenant's jobs.",
        &TenantSample::live_workers);
  gauge("phub_tenant_memory_bytes", "Memory that the tenant's jobs have reserved.",
        &TenantSample::memory_bytes);
  gauge("phub_tenant_memory_quota_bytes", "Memory that the tenant's jobs may reserve.",
        &TenantSample::memory_quota_bytes);
  gauge("phub_tenant_left_memory_bytes",
        "Shared memory that processes still use after their job has ended or they were replaced.",
        &TenantSample::left_memory_bytes);
  const auto grant = [&](std::string_view name, std::string_view help,
                         std::uint64_t GrantSample::*member) {
    WriteEach(sample.tenants, text, name, Type::kGauge, help, [&](const TenantSample& tenant) {
      for (const GrantSample& each : tenant.grants)
        text.Add(each.*member, {{"tenant", tenant.tenant}, {"quota", each.resource}});
    });
  };
  grant("phub_tenant_grant", "Part of a cluster's quota that this daemon may use.",
        &GrantSample::amount);
  grant("phub_tenant_grant_used", "What the tenant's jobs use of this daemon's part.",
        &GrantSample::used);
  const auto counter = [&](std::string_view name, std::string_view help, auto value) {
    WriteEach(sample.tenants, text, name, Type::kCounter, help, [&](const TenantSample& tenant) {
      text.Add(value(tenant.totals), {{"tenant", tenant.tenant}});
    });
  };
  counter("phub_tenant_gradient_bytes_total",
          "Payload of the gradients of all jobs, ended ones included.",
          [](const WorkTotals& totals) { return totals.gradient_bytes; });
  counter("phub_tenant_reply_bytes_total",
          "Payload of the replies of all jobs, ended ones included.",
          [](const WorkTotals& totals) { return totals.reply_bytes; });
  counter("phub_tenant_rounds_total",
          "Completed rounds of chunks of all jobs, ended ones included.",
          [](const WorkTotals& totals) { return totals.rounds(); });
}

void WriteProcess(const ProcessSample& process, const http::HttpCounts& http, TextFormat& text) {
  text.BeginFamily("process_cpu_seconds_total", Type::kCounter,
                   "User and system CPU time of all threads.");
  text.AddSeconds(process.cpu_time);
  text.BeginFamily("process_resident_memory_bytes", Type::kGauge, "Resident memory.");
  text.Add(process.resident_bytes);
  text.BeginFamily("process_open_fds", Type::kGauge, "Open file descriptors.");
  text.Add(process.open_descriptors);
  text.BeginFamily("process_max_fds", Type::kGauge, "Maximum number of open file descriptors.");
  text.Add(process.descriptors_max);
  text.BeginFamily("phub_log_lines_dropped_total", Type::kCounter,
                   "Lines of the log dropped because the reader of standard error stalled.");
  text.Add(process.log_lines_dropped);
  text.BeginFamily("phub_metrics_answers_total", Type::kCounter,
                   "Responses of the metrics port, by HTTP status.");
  for (const auto& [code, count] : http.answers) {
    text.Add(count, {{"code", fmt::format("{}", code)}});
  }
  text.BeginFamily("phub_metrics_connections_cut_total", Type::kCounter,
                   "Connections to the metrics port closed because they were too slow.");
  text.Add(http.connections_cut);
}

}  // namespace

CounterFamily FamilyOf(std::string_view counter) {
  constexpr std::string_view kRefused = "refused_";
  const std::size_t found = counter.find(kRefused);
  if (found == std::string_view::npos) return {std::string(counter), ""};
  const std::string reason(counter.substr(found + kRefused.size()));
  const std::string what(counter.substr(0, found));  // "joins_"; empty for a core loop's messages
  return {fmt::format("{}refused", what.empty() ? "messages_" : what), reason};
}

std::string WriteExposition(const MetricsSample& sample, const ProcessSample& process,
                            const http::HttpCounts& http) {
  TextFormat text;
  WriteDaemon(sample, text);
  WriteTenants(sample, text);
  WriteCheckpoint(sample, text);
  WriteJobWork(sample, text);
  WriteGroups(sample, text);
  WriteCores(sample, text);
  WriteTurns(sample, text);
  WriteCounters(sample, text);
  WriteProcess(process, http, text);
  return text.Take();
}

}  // namespace phub::server
