// All runs of jobs that this daemon knows: running, being torn down, and the newest that have
// ended. Finds them by name, by incarnation, and by the shards in the events of core loops. A
// pointer to a job is valid until the job is forgotten. Owned by Control; under control's lock.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "server/control/context.h"
#include "server/control/jobs/job.h"
#include "server/control/jobs/job_observer.h"

namespace phub::server {

class JobTable {
 public:
  explicit JobTable(Context& context) : context_(context) {}

  // Call it before the first job. The observer must outlive all jobs.
  void AddObserver(JobObserver& observer) { observers_.push_back(&observer); }
  const std::vector<JobObserver*>& observers() const { return observers_; }

  // Jobs that run or are being torn down, in the order of creation.
  const std::list<std::unique_ptr<Job>>& jobs() const { return jobs_; }
  // Released jobs, the oldest first.
  const std::deque<std::unique_ptr<Job>>& ended() const { return ended_; }

  // Notifies the observers, then adds the job.
  Job* Add(std::unique_ptr<Job> job);
  // Moves a released job to ended().
  void Remember(Job& job);
  // REQUIRES: some job has ended.
  void ForgetOldest() { ended_.pop_front(); }
  // REQUIRES: the job is in ended(), and no session is known there.
  void Forget(const Job& job);

  Incarnation DrawIncarnation();  // differs from those of all known jobs

  Job* FindIncarnation(Incarnation incarnation) const;  // in jobs(); null: none
  Job* FindRun(Incarnation incarnation) const;          // in jobs() and ended(); null: none
  // The running job; null: none.
  Job* FindRunningJob(const std::string& tenant, const std::string& name) const;
  // The newest run of that name; NOT_FOUND if none is known.
  absl::StatusOr<const Job*> FindJob(const std::string& tenant, const std::string& name) const;
  // The same. FAILED_PRECONDITION if the job is not running, with the reason.
  absl::StatusOr<Job*> FindJobToWorkOn(const std::string& tenant, const std::string& name) const;

  // Maps the shards in the events of core loops to their jobs.
  void AddShard(const JobShard* shard, Job& job, CoreIndex core);
  void ForgetShards(const Job& job);
  Job& OwnerOf(const JobShard* shard, CoreIndex core) const;

  // Aborts if J1 or J2 of docs/internals/invariants.md is broken.
  void CheckInvariants() const;

 private:
  struct ShardOwner {
    Job* job = nullptr;
    CoreIndex core{};
  };

  Context& context_;
  std::vector<JobObserver*> observers_;
  std::list<std::unique_ptr<Job>> jobs_;
  std::deque<std::unique_ptr<Job>> ended_;
  std::uint64_t created_ = 0;
  std::unordered_map<const JobShard*, ShardOwner> shard_owners_;  // looked up, never iterated
};

}  // namespace phub::server
