#include "client/cli/top_sample.h"

#include <algorithm>

#include "client/cli/rpc.h"

namespace phub::client::cli {
namespace {

void AddJobs(const v1::ListJobsResponse& response, TopSample& sample) {
  for (const v1::JobInfo& job : response.jobs()) {
    if (job.state() != "running") continue;
    JobFigures& figures = sample.jobs[{job.tenant(), job.name()}];
    figures.state = job.state();
    if (job.iteration() >= figures.info.iteration()) figures.info = job;
    figures.world_size = job.world_size();
    figures.memory_bytes += job.memory_bytes();
    std::uint32_t live = 0;
    for (const v1::WorkerInfo& worker : job.workers()) {
      if (worker.state() == "live") ++live;
      RankFigures& rank = figures.ranks[worker.rank()];
      rank.host = worker.host();
      rank.rounds_last += worker.rounds_last();
      rank.straggler_wait_ns += worker.straggler_wait_ns();
    }
    // A worker counts as live only if every daemon reports it as live.
    figures.live = figures.live == 0 ? live : std::min(figures.live, live);
  }
}

void AddTenantCounter(const v1::Counter& counter, TenantFigures& tenant) {
  const std::string& name = counter.name();
  const std::uint64_t value = counter.value();
  // Every daemon has all jobs of the rack, but only its own part of a job's memory and bytes.
  if (name == "phub_tenant_jobs") tenant.jobs = std::max(tenant.jobs, value);
  if (name == "phub_tenant_live_workers")
    tenant.live_workers = std::max(tenant.live_workers, value);
  if (name == "phub_tenant_memory_bytes") tenant.memory_bytes += value;
  if (name == "phub_tenant_memory_quota_bytes") tenant.memory_quota_bytes += value;
  if (name == "phub_tenant_gradient_bytes_total") tenant.gradient_bytes += value;
  if (name == "phub_tenant_reply_bytes_total") tenant.reply_bytes += value;
}

void AddCounters(const v1::GetStatsResponse& response, DaemonFigures& daemon, TopSample& sample) {
  for (const v1::Counter& counter : response.counters()) {
    const std::string& name = counter.name();
    if (counter.core() >= 0) {
      const auto core = static_cast<std::size_t>(counter.core());
      if (name == "phub_busy_ns_total") {
        if (daemon.busy_ns.size() <= core) daemon.busy_ns.resize(core + 1);
        daemon.busy_ns[core] = counter.value();
      }
      if (name == "phub_gradient_bytes_total") daemon.gradient_bytes += counter.value();
      if (name == "phub_reply_bytes_total") daemon.reply_bytes += counter.value();
    } else if (!counter.job().empty()) {
      const auto job = sample.jobs.find({counter.tenant(), counter.job()});
      if (job == sample.jobs.end()) continue;
      if (name == "phub_job_gradient_bytes_total") job->second.gradient_bytes += counter.value();
      if (name == "phub_job_reply_bytes_total") job->second.reply_bytes += counter.value();
      if (name == "phub_job_rounds_total") job->second.rounds += counter.value();
    } else if (!counter.tenant().empty()) {
      AddTenantCounter(counter, sample.tenants[counter.tenant()]);
    }
  }
}

}  // namespace

grpc::Status TakeTopSample(const Options& options, const Clock& clock, TopSample& sample) {
  std::vector<RackMember> members;
  if (grpc::Status status = AskRack(options, members); !status.ok()) return status;
  sample = {};
  sample.taken_at = clock.Now();
  for (const RackMember& member : members) {
    DaemonFigures& daemon = sample.daemons[member.options.endpoint];
    daemon.status = member.status;
    daemon.server = member.server;
    if (!daemon.status.ok()) continue;
    v1::ListJobsResponse jobs;
    daemon.status = CallListJobs(member.options, options.tenant, jobs);
    if (!daemon.status.ok()) continue;
    AddJobs(jobs, sample);
    v1::GetStatsResponse stats;
    daemon.status = CallPages(member.options, &v1::Admin::Stub::GetStats, v1::GetStatsRequest(),
                              kEntriesPerPage, stats);
    if (daemon.status.ok()) AddCounters(stats, daemon, sample);
  }
  // A daemon with identities does not use the default tenant: hide it.
  std::erase_if(sample.tenants, [](const auto& each) {
    const TenantFigures& tenant = each.second;
    return tenant.memory_quota_bytes == 0 && tenant.jobs == 0 && tenant.memory_bytes == 0;
  });
  if (!options.tenant.empty()) {
    std::erase_if(sample.tenants, [&](const auto& each) { return each.first != options.tenant; });
  }
  return grpc::Status::OK;
}

double PerSecond(std::uint64_t before, std::uint64_t after, DurationNs elapsed) {
  if (elapsed <= 0 || after < before) return -1;
  return static_cast<double>(after - before) * 1e9 / static_cast<double>(elapsed);
}

Straggler FindStraggler(const JobFigures& before, const JobFigures& after) {
  Straggler worst;
  std::uint64_t worst_wait = 0, rounds = 0, worst_rounds = 0;
  for (const auto& [rank, now] : after.ranks) {
    const auto then = before.ranks.find(rank);
    if (then == before.ranks.end() || now.rounds_last < then->second.rounds_last ||
        now.straggler_wait_ns < then->second.straggler_wait_ns) {
      return {};  // another run of the job
    }
    const std::uint64_t last = now.rounds_last - then->second.rounds_last;
    const std::uint64_t wait = now.straggler_wait_ns - then->second.straggler_wait_ns;
    rounds += last;
    if (wait <= worst_wait) continue;
    worst_wait = wait;
    worst_rounds = last;
    worst.rank = rank;
    worst.host = now.host;
  }
  if (worst_rounds == 0) return {};
  worst.known = true;
  worst.share = static_cast<double>(worst_rounds) / static_cast<double>(rounds);
  worst.late_by = static_cast<DurationNs>(worst_wait / worst_rounds);
  return worst;
}

}  // namespace phub::client::cli
