#include "server/control/admin/metrics.h"

#include <utility>

#include "server/control/on_control.h"

namespace phub::server {
namespace {

// A visit reads a few counters for each rank and core loop. That many take as long as the rest of a
// unit.
constexpr std::size_t kRankCountersPerUnit = 128;
const std::string kNoTenant;  // samples take turns with the work of tenants

void AddCounter(v1::GetStatsResponse& response, const std::string& name, std::uint64_t value,
                std::int32_t core = -1) {
  v1::Counter& counter = *response.add_counters();
  counter.set_name(name);
  counter.set_core(core);
  counter.set_value(value);
}

// A counter of one tenant or of one of its jobs.
void AddOwned(v1::GetStatsResponse& response, const std::string& tenant, const std::string& job,
              const char* name, std::uint64_t value) {
  AddCounter(response, name, value);
  v1::Counter& counter = *response.mutable_counters()->rbegin();
  counter.set_tenant(tenant);
  counter.set_job(job);
}

WorkerCounts CountWorkers(const Job& job) {
  WorkerCounts counts;
  for (const Member& member : job.members) {
    switch (member.state) {
      case Member::State::kAwaited:
      case Member::State::kReserved: ++counts.awaited; break;
      case Member::State::kLive: ++counts.live; break;
      case Member::State::kLost: ++counts.lost; break;
      case Member::State::kLeft:
      case Member::State::kDead: break;
    }
  }
  return counts;
}

JobSample SampleJob(const Job& job, const WorkerCounts& workers, const WorkTotals& totals,
                    std::uint64_t memory_bytes) {
  JobSample sample;
  sample.tenant = job.account.tenant;
  sample.job = job.name();
  sample.totals = totals;
  sample.workers = workers;
  sample.slots =
      std::uint64_t{job.settings.world_size} * job.config.slots_per_lane * job.shards.size();
  for (const auto& shard : job.shards) sample.slots_used += shard->metrics.slots_used.Get();
  sample.memory_bytes = memory_bytes;
  sample.parameter_bytes = job.parameter_bytes;
  return sample;
}

// Counters of the whole daemon.
void WriteDaemonStats(const MetricsSample& sample, v1::GetStatsResponse& response) {
  for (std::size_t core = 0; core < sample.cores.size(); ++core) {
    const auto index = static_cast<std::int32_t>(core);
    for (std::size_t i = 0; i < kCoreCounterCount; ++i) {
      AddCounter(response, fmt::format("phub_{}_total", kCoreCounterNames[i]),
                 sample.cores[core].counters[i], index);
    }
    AddCounter(response, "phub_commands_waiting", sample.cores[core].commands_waiting, index);
    for (const TransportCount& count : sample.cores[core].transport_counts)
      AddCounter(response, fmt::format("phub_{}_total", count.name), count.value, index);
  }
  for (std::size_t i = 0; i < kControlCounterCount; ++i) {
    AddCounter(response, fmt::format("phub_{}_total", kControlCounterNames[i]),
               sample.control_counters[i]);
  }
  AddCounter(response, "phub_memory_bytes", sample.memory_bytes);
  AddCounter(response, "phub_memory_bytes_max", sample.memory_limit_bytes);
  AddCounter(response, "phub_jobs", sample.jobs_running + sample.jobs_ending);
}

// only_tenant: empty writes all counters.
void WriteStats(const MetricsSample& sample, const std::string& only_tenant,
                v1::GetStatsResponse& response) {
  if (only_tenant.empty()) WriteDaemonStats(sample, response);
  for (const JobSample& job : sample.jobs) {
    if (!only_tenant.empty() && job.tenant != only_tenant) continue;
    const auto add = [&](const char* name, std::uint64_t value) {
      AddOwned(response, job.tenant, job.job, name, value);
    };
    add("phub_job_memory_bytes", job.memory_bytes);
    add("phub_job_gradients_total", job.totals.gradients);
    add("phub_job_gradient_bytes_total", job.totals.gradient_bytes);
    add("phub_job_reply_bytes_total", job.totals.reply_bytes);
    add("phub_job_rounds_total", job.totals.rounds());
    add("phub_job_nonfinite_sums_total", job.totals.nonfinite_sums);
    add("phub_job_nonfinite_gradients_total", job.totals.nonfinite_gradients);
    add("phub_job_round_duration_ns_total", job.totals.round_duration_ns);
    add("phub_job_straggler_wait_ns_total", job.totals.straggler_wait_ns);
    add("phub_job_slots", job.slots);
    add("phub_job_slots_used", job.slots_used);
  }
  for (const TenantSample& tenant : sample.tenants) {
    if (!only_tenant.empty() && tenant.tenant != only_tenant) continue;
    const auto add = [&](const char* name, std::uint64_t value) {
      AddOwned(response, tenant.tenant, "", name, value);
    };
    add("phub_tenant_jobs", tenant.jobs);
    add("phub_tenant_live_workers", tenant.live_workers);
    add("phub_tenant_memory_bytes", tenant.memory_bytes);
    add("phub_tenant_memory_quota_bytes", tenant.memory_quota_bytes);
    add("phub_tenant_left_memory_bytes", tenant.left_memory_bytes);
    add("phub_tenant_gradient_bytes_total", tenant.totals.gradient_bytes);
    add("phub_tenant_reply_bytes_total", tenant.totals.reply_bytes);
    add("phub_tenant_rounds_total", tenant.totals.rounds());
  }
}

}  // namespace

RankMetricsSum Metrics::SumOfRank(const Job& job, Rank rank) const {
  PHUB_ON_CONTROL();
  RankMetricsSum sum;
  for (const auto& shard : job.shards) {
    const RankMetrics& metrics = shard->metrics.ranks[rank.value];
    sum.rounds_last += metrics.rounds_last.Get();
    sum.straggler_wait_ns += metrics.straggler_wait_ns.Get();
  }
  return sum;
}

void Metrics::BeginSample(Sampling& sampling) const {
  MetricsSample& sample = sampling.sample;
  sampling.begun_ = true;
  sampling.tenants_[kDefaultTenant];
  if (!jobs_.jobs().empty()) sampling.last_ = jobs_.jobs().back()->number;
  sample.version = context_.options.version;
  sample.commit = context_.options.commit;
  sample.simd_target = context_.options.simd_target;
}

void Metrics::Visit(const Job& job, Sampling& sampling) const {
  MetricsSample& sample = sampling.sample;
  TenantSample& tenant = sampling.tenants_[job.account.tenant];
  sampling.visited_.push_back({job.number, &tenant, totals_.TotalsOf(job)});
  ++(job.running() ? sample.jobs_running : sample.jobs_ending);
  if (!job.running()) return;
  const WorkerCounts workers = CountWorkers(job);
  sample.workers.awaited += workers.awaited;
  sample.workers.live += workers.live;
  sample.workers.lost += workers.lost;
  ++tenant.jobs;
  tenant.live_workers += workers.live;
  if (sample.jobs.size() == kJobsSampledMax) {
    ++sample.jobs_omitted;
  } else {
    sample.jobs.push_back(SampleJob(job, workers, sampling.visited_.back().totals,
                                    context_.ledger.used_bytes(job.account)));
  }
}

// The work of a job counts once: among its tenant's ended jobs if it was released since its visit.
void Metrics::FinishSample(Sampling& sampling) const {
  MetricsSample& sample = sampling.sample;
  auto job = jobs_.jobs().begin();
  for (const Sampling::Visited& visited : sampling.visited_) {
    while (job != jobs_.jobs().end() && (*job)->number < visited.number) ++job;
    if (job == jobs_.jobs().end()) break;
    const bool counts = (*job)->number == visited.number && !(*job)->released();
    if (counts) visited.tenant->totals.Add(visited.totals);
  }
  for (const auto& [tenant, totals] : totals_.released())
    sampling.tenants_[tenant].totals.Add(totals);
  for (auto& [name, tenant] : sampling.tenants_) {
    if (sample.tenants.size() == kTenantsSampledMax) {
      sample.tenants_omitted = sampling.tenants_.size() - kTenantsSampledMax;
      break;
    }
    tenant.tenant = name;
    tenant.memory_bytes = context_.ledger.UsageOf(name).memory_bytes;
    tenant.memory_quota_bytes = context_.ledger.tenant_limit_bytes(name);
    tenant.left_memory_bytes = context_.ledger.LeftOf(name);
    sample.tenants.push_back(tenant);
  }
  sample.uptime = context_.clock.Now() - context_.started_at;
  sample.draining = context_.drain.draining;
  sample.state_disk_fault = !context_.state_disk.fault.empty();
  sample.changes_deferred = context_.state_disk.deferred;
  sample.memory_bytes = context_.ledger.used_bytes();
  sample.memory_limit_bytes = context_.ledger.limit_bytes();
  for (const CoreLink& link : context_.cores) {
    CoreSample& core = sample.cores.emplace_back();
    for (std::size_t i = 0; i < kCoreCounterCount; ++i) {
      core.counters[i] = link.counters().Get(static_cast<CoreCounter>(i));
    }
    core.commands_waiting = link.backlog();
    for (const transport::TransportCounter& counter : link.transport_counters())
      core.transport_counts.push_back({counter.name, counter.help, counter.value->Get()});
  }
  for (std::size_t i = 0; i < kControlCounterCount; ++i) {
    sample.control_counters.push_back(context_.counters.Get(static_cast<ControlCounter>(i)));
  }
  sample.turn_times = context_.turn_times;
}

bool Metrics::SampleMore(Sampling& sampling) {
  PHUB_ON_CONTROL();
  if (!sampling.begun_) BeginSample(sampling);
  const std::uint64_t after = sampling.visited_.empty() ? 0 : sampling.visited_.back().number;
  std::size_t units = 0;
  for (const auto& job : jobs_.jobs()) {
    if (job->number <= after) continue;
    if (job->number > sampling.last_) break;
    if (units >= context_.options.turn.jobs) {
      context_.turn.Add(units);
      return false;
    }
    Visit(*job, sampling);
    units += 1 + job->members.size() * job->shards.size() / kRankCountersPerUnit;
  }
  context_.turn.Add(units);
  FinishSample(sampling);
  return true;
}

void Metrics::GetStats(const v1::GetStatsRequest& /*request*/, Answer<v1::GetStatsResponse> answer,
                       const std::string& only_tenant) {
  PHUB_ON_CONTROL();
  waiting_calls_.push_back({only_tenant, std::move(answer)});
  if (!sampling_calls_) SampleForCalls();
}

void Metrics::SampleForCalls() {
  sampling_calls_ = true;
  ContinueForCalls(std::make_shared<Sampling>(),
                   std::make_shared<StatsCalls>(std::exchange(waiting_calls_, {})));
}

void Metrics::ContinueForCalls(const std::shared_ptr<Sampling>& sampling,
                               const std::shared_ptr<StatsCalls>& calls) {
  bool complete = SampleMore(*sampling);
  if (context_.background == nullptr) {
    while (!complete) complete = SampleMore(*sampling);
  } else if (!complete) {
    return context_.background->Run(
        kNoTenant, [] {}, [this, sampling, calls] { ContinueForCalls(sampling, calls); });
  }
  const std::size_t units = sampling->sample.jobs.size() + sampling->sample.tenants.size();
  for (StatsCall& call : *calls) {
    const auto response = std::make_shared<v1::GetStatsResponse>();
    context_.RunLong(
        units, call.only_tenant,
        [sampling, response, only_tenant = call.only_tenant] {
          WriteStats(sampling->sample, only_tenant, *response);
        },
        [response, answer = std::move(call.answer)] {
          answer(absl::OkStatus(), std::move(*response));
        });
  }
  sampling_calls_ = false;
  if (waiting_calls_.empty()) return;
  if (context_.background == nullptr) return SampleForCalls();
  sampling_calls_ = true;  // a sample of its own turn
  context_.background->Run(
      kNoTenant, [] {}, [this] { SampleForCalls(); });
}

}  // namespace phub::server
