#include "server/control/admin/metrics.h"

#include <algorithm>
#include <utility>

#include "server/control/on_control.h"

namespace phub::server {
namespace {

// A visit reads a few counters for each rank and core loop. That many take as long as the rest of a
// unit.
constexpr std::size_t kRankCountersPerUnit = 128;
const std::string kNoTenant;  // samples take turns with the work of tenants

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
  sample.number = job.number;
  sample.totals = totals;
  sample.workers = workers;
  sample.slots =
      std::uint64_t{job.settings.world_size} * job.config.slots_per_lane * job.shards.size();
  for (const auto& shard : job.shards) sample.slots_used += shard->metrics.slots_used.Get();
  sample.memory_bytes = memory_bytes;
  sample.parameter_bytes = job.parameter_bytes;
  return sample;
}

}  // namespace

WorkTotals Metrics::TotalsOfGroup(const Group& group) {
  WorkTotals totals;
  for (const std::unique_ptr<WorkMetrics>& work : group.work) totals.AddWork(*work);
  return totals;
}

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
  Sampling::VisitedTenant& tenant = sampling.tenants_[job.account.tenant];
  tenant.jobs.push_back({job.number, totals_.TotalsOf(job)});
  sampling.after_ = job.number;
  ++(job.running() ? sample.jobs_running : sample.jobs_ending);
  if (!job.running()) return;
  const WorkerCounts workers = CountWorkers(job);
  sample.workers.awaited += workers.awaited;
  sample.workers.live += workers.live;
  sample.workers.lost += workers.lost;
  ++tenant.sample.jobs;
  tenant.sample.live_workers += workers.live;
  if (!sampling.whole && sample.jobs.size() == kJobsSampledMax) {
    ++sample.jobs_omitted;
  } else {
    sample.jobs.push_back(SampleJob(job, workers, tenant.jobs.back().totals,
                                    context_.ledger.used_bytes(job.account)));
    if (!sampling.whole) VisitGroups(job, sample);
  }
}

void Metrics::VisitGroups(const Job& job, MetricsSample& sample) {
  for (const std::shared_ptr<Group>& group : job.groups) {
    if (sample.groups.size() == kGroupsSampledMax) {
      ++sample.groups_omitted;
      continue;
    }
    sample.groups.push_back(
        {job.account.tenant, job.name(), group->name, group->id, TotalsOfGroup(*group)});
  }
}

bool Metrics::VisitJobs(Sampling& sampling, std::size_t& units) const {
  for (const auto& job : jobs_.jobs()) {
    if (job->number <= sampling.after_) continue;
    if (job->number > sampling.last_) break;
    if (units >= context_.options.turn.jobs) return false;
    Visit(*job, sampling);
    const std::size_t counters = (job->members.size() + job->groups.size()) * job->shards.size();
    units += 1 + counters / kRankCountersPerUnit;
  }
  return true;
}

const std::string* Metrics::NextTenant(const Sampling& sampling) const {
  const auto visited = sampling.tenants_.upper_bound(sampling.tenant_);
  const auto released = totals_.released().upper_bound(sampling.tenant_);
  if (visited == sampling.tenants_.end())
    return released == totals_.released().end() ? nullptr : &released->first;
  if (released == totals_.released().end()) return &visited->first;
  return &std::min(visited->first, released->first);
}

// The work of a job counts once: among its tenant's ended jobs if it was released since its visit.
void Metrics::DescribeTenant(Sampling::VisitedTenant& tenant,
                             const std::vector<std::uint64_t>& unreleased) const {
  TenantSample& sample = tenant.sample;
  for (const Sampling::Visited& job : tenant.jobs)
    if (std::ranges::binary_search(unreleased, job.number)) sample.totals.Add(job.totals);
  const auto released = totals_.released().find(sample.tenant);
  if (released != totals_.released().end()) sample.totals.Add(released->second);
  sample.memory_bytes = context_.ledger.UsageOf(sample.tenant).memory_bytes;
  sample.memory_quota_bytes = context_.ledger.tenant_limit_bytes(sample.tenant);
  sample.left_memory_bytes = context_.ledger.LeftOf(sample.tenant);
  if (!context_.ledger.uses_grants()) return;
  const Ledger::GrantUse use = context_.ledger.GrantUseOf(sample.tenant);
  for (const Resource resource : kGrantedResources) {
    if (!LimitOf(use.quota, resource)) continue;
    sample.grants.push_back(
        {ToString(resource), At(use.grant, resource), At(use.charged, resource)});
  }
}

bool Metrics::VisitTenants(Sampling& sampling, std::size_t& units) const {
  std::vector<std::uint64_t> unreleased;  // jobs, in the order of their numbers
  for (const auto& job : jobs_.jobs())
    if (!job->released()) unreleased.push_back(job->number);
  MetricsSample& sample = sampling.sample;
  while (const std::string* const next = NextTenant(sampling)) {
    if (units >= context_.options.turn.jobs) return false;
    ++units;
    sampling.tenant_ = *next;
    if (!sampling.whole && sample.tenants.size() == kTenantsSampledMax) {
      ++sample.tenants_omitted;
      continue;
    }
    Sampling::VisitedTenant& tenant = sampling.tenants_[sampling.tenant_];
    tenant.sample.tenant = sampling.tenant_;
    DescribeTenant(tenant, unreleased);
    sample.tenants.push_back(tenant.sample);
  }
  return true;
}

void Metrics::FinishSample(Sampling& sampling) const {
  MetricsSample& sample = sampling.sample;
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
  sample.turn_times = context_.turns.times();
}

bool Metrics::SampleMore(Sampling& sampling) {
  PHUB_ON_CONTROL();
  if (!sampling.begun_) BeginSample(sampling);
  std::size_t units = 0;
  const bool complete = VisitJobs(sampling, units) && VisitTenants(sampling, units);
  context_.turns.Add(units);
  if (complete) FinishSample(sampling);
  return complete;
}

void Metrics::GetStats(const v1::GetStatsRequest& request, Answer<v1::GetStatsResponse> answer,
                       const std::string& only_tenant) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<StatsPage> page = ParseStatsPage(request);
  if (!page.ok()) return answer(page.status(), {});
  waiting_calls_.push_back({only_tenant, *page, std::move(answer)});
  if (!sampling_calls_) SampleForCalls();
}

void Metrics::SampleForCalls() {
  sampling_calls_ = true;
  const auto sampling = std::make_shared<Sampling>();
  sampling->whole = true;
  ContinueForCalls(sampling, std::make_shared<StatsCalls>(std::exchange(waiting_calls_, {})));
}

void Metrics::ContinueForCalls(const std::shared_ptr<Sampling>& sampling,
                               const std::shared_ptr<StatsCalls>& calls) {
  if (!SampleMore(*sampling)) {
    return context_.turns.RunLater(kNoTenant,
                                   [this, sampling, calls] { ContinueForCalls(sampling, calls); });
  }
  const std::size_t units = sampling->sample.jobs.size() + sampling->sample.tenants.size();
  for (StatsCall& call : *calls) {
    struct Writing {
      StatsCall call;
      absl::Status status;
      v1::GetStatsResponse response;
    };
    const auto writing = std::make_shared<Writing>();
    writing->call = std::move(call);
    context_.turns.RunLong(
        units, writing->call.only_tenant,
        [sampling, writing] {
          writing->status = WriteStats(sampling->sample, writing->call.only_tenant,
                                       writing->call.page, writing->response);
        },
        [writing] { writing->call.answer(writing->status, std::move(writing->response)); });
  }
  sampling_calls_ = false;
  if (waiting_calls_.empty()) return;
  sampling_calls_ = true;  // a sample of its own turn
  context_.turns.RunLater(kNoTenant, [this] { SampleForCalls(); });
}

}  // namespace phub::server
