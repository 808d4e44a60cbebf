#include "server/control/jobs/job_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "server/control/on_control.h"

namespace phub::server {

Job* JobTable::Add(std::unique_ptr<Job> job) {
  PHUB_ON_CONTROL();
  job->number = ++created_;
  for (JobObserver* each : observers_) each->OnCreated(*job);
  jobs_.push_back(std::move(job));
  return jobs_.back().get();
}

void JobTable::Remember(Job& job) {
  PHUB_ON_CONTROL();
  const auto found = std::find_if(jobs_.begin(), jobs_.end(),
                                  [&](const auto& each) { return each.get() == &job; });
  PHUB_CHECK(found != jobs_.end() && job.released(), "job={}", job.name());
  ended_.push_back(std::move(*found));
  jobs_.erase(found);
}

void JobTable::Forget(const Job& job) {
  PHUB_ON_CONTROL();
  const auto count = std::erase_if(ended_, [&](const auto& each) { return each.get() == &job; });
  PHUB_CHECK(count == 1);
}

Incarnation JobTable::DrawIncarnation() {
  PHUB_ON_CONTROL();
  for (;;) {
    const Incarnation drawn{context_.random.Next()};
    const auto is_drawn = [&](const auto& job) { return job->account.incarnation == drawn; };
    if (drawn.value != 0 && std::none_of(jobs_.begin(), jobs_.end(), is_drawn) &&
        std::none_of(ended_.begin(), ended_.end(), is_drawn)) {
      return drawn;
    }
  }
}

Job* JobTable::FindRunningJob(const std::string& tenant, const std::string& name) const {
  PHUB_ON_CONTROL();
  for (const auto& job : jobs_) {
    if (job->running() && job->account.tenant == tenant && job->name() == name) return job.get();
  }
  return nullptr;
}

Job* JobTable::FindIncarnation(Incarnation incarnation) const {
  PHUB_ON_CONTROL();
  for (const auto& job : jobs_) {
    if (job->account.incarnation == incarnation) return job.get();
  }
  return nullptr;
}

Job* JobTable::FindRun(Incarnation incarnation) const {
  PHUB_ON_CONTROL();
  if (Job* job = FindIncarnation(incarnation)) return job;
  for (const auto& job : ended_) {
    if (job->account.incarnation == incarnation) return job.get();
  }
  return nullptr;
}

absl::StatusOr<const Job*> JobTable::FindJob(const std::string& tenant,
                                             const std::string& name) const {
  PHUB_ON_CONTROL();
  const std::string owner = tenant.empty() ? kDefaultTenant : tenant;
  const Job* found = nullptr;
  std::string others;
  const auto look = [&](const auto& all) {
    for (const auto& job : all) {
      if (job->account.tenant != owner) continue;
      if (job->name() == name) found = job.get();
      if (job->running()) others += (others.empty() ? "" : ", ") + job->name();
    }
  };
  look(ended_);
  look(jobs_);
  if (found != nullptr) return found;
  return absl::NotFoundError(
      fmt::format("tenant {} has no job {}; {}", owner, name,
                  others.empty() ? "no job is running" : "running jobs: " + others));
}

absl::StatusOr<Job*> JobTable::FindJobToWorkOn(const std::string& tenant,
                                               const std::string& name) const {
  PHUB_ON_CONTROL();
  const absl::StatusOr<const Job*> found = FindJob(tenant, name);
  if (!found.ok()) return found.status();
  Job* const job = FindIncarnation((*found)->account.incarnation);
  if (job != nullptr && job->running()) return job;
  const std::string why =
      (*found)->state == Job::State::kFailed ? (*found)->fault.message() : "it has ended";
  return absl::FailedPreconditionError(fmt::format("job {} is not running: {}", name, why));
}

void JobTable::AddShard(const JobShard* shard, Job& job, CoreIndex core) {
  shard_owners_[shard] = {&job, core};
}

void JobTable::ForgetShards(const Job& job) {
  for (const auto& shard : job.shards) shard_owners_.erase(shard.get());
}

Job& JobTable::OwnerOf(const JobShard* shard, CoreIndex core) const {
  PHUB_ON_CONTROL();
  const auto owner = shard_owners_.find(shard);
  PHUB_CHECK(owner != shard_owners_.end() && owner->second.core == core, "core={}", core.value);
  return *owner->second.job;
}

void JobTable::CheckInvariants() const {
  PHUB_ON_CONTROL();
  std::set<Incarnation> incarnations;
  std::set<std::pair<std::string, std::string>> running;
  std::size_t shard_count = 0;
  for (const auto& job : jobs_) {
    for (std::size_t core = 0; core < job->shards.size(); ++core) {
      const auto owner = shard_owners_.find(job->shards[core].get());
      PHUB_CHECK(owner != shard_owners_.end() && owner->second.job == job.get() &&
                     owner->second.core == CoreAt(core),
                 "J1 job={} core={}", job->name(), core);
    }
    shard_count += job->shards.size();
    PHUB_CHECK(incarnations.insert(job->account.incarnation).second, "J2 job={}", job->name());
    PHUB_CHECK(!job->running() || running.insert({job->account.tenant, job->name()}).second,
               "J2 job={}", job->name());
  }
  PHUB_CHECK(shard_count == shard_owners_.size(), "J1 shards={} known={}", shard_count,
             shard_owners_.size());
  for (const auto& job : ended_) {
    PHUB_CHECK(job->released() && incarnations.insert(job->account.incarnation).second, "J2 job={}",
               job->name());
  }
}

}  // namespace phub::server
