// All runs of jobs that this daemon knows: running, being torn down, and the newest that have
// ended. Finds them by name, by incarnation and by the shards that core loops report about. Owned
// by Control; under control's lock. Jobs stay where they are until they are forgotten, so pointers
// and references to one are good until then.
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

  // Before the first job. The observer outlives the table's jobs.
  void AddObserver(JobObserver& observer) { observers_.push_back(&observer); }
  const std::vector<JobObserver*>& observers() const { return observers_; }

  // Running or being torn down, in the order of creation.
  const std::list<std::unique_ptr<Job>>& jobs() const { return jobs_; }
  // Released, the oldest first.
  const std::deque<std::unique_ptr<Job>>& ended() const { return ended_; }

  // The observers hear of it first.
  Job* Add(std::unique_ptr<Job> job);
  // A released job: remembered from now on among those that have ended.
  void Remember(Job& job);
  // REQUIRES: some job has ended.
  void ForgetOldest() { ended_.pop_front(); }

  Incarnation DrawIncarnation();  // used by no job that is known

  Job* FindIncarnation(Incarnation incarnation) const;  // null: none in jobs() has it
  Job* FindRun(Incarnation incarnation) const;          // in ended(), too
  // The one that runs; null: none does.
  Job* FindRunningJob(const std::string& tenant, const std::string& name) const;
  // The newest run of that name, NOT_FOUND if none is known.
  absl::StatusOr<const Job*> FindJob(const std::string& tenant, const std::string& name) const;
  // The same if it runs; otherwise why not.
  absl::StatusOr<Job*> FindJobToWorkOn(const std::string& tenant, const std::string& name) const;

  // Core loops report about shards.
  void AddShard(const JobShard* shard, Job& job, CoreIndex core);
  void ForgetShards(const Job& job);
  Job& OwnerOf(const JobShard* shard, CoreIndex core) const;

 private:
  struct ShardOwner {
    Job* job = nullptr;
    CoreIndex core{};
  };

  Context& context_;
  std::vector<JobObserver*> observers_;
  std::list<std::unique_ptr<Job>> jobs_;
  std::deque<std::unique_ptr<Job>> ended_;
  std::unordered_map<const JobShard*, ShardOwner> shard_owners_;  // looked up, never iterated
};

}  // namespace phub::server
