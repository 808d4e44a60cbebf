// Admits ranks to jobs and creates runs of jobs. A join is checked against the limits of the
// daemon, the quota of the tenant and the options of the other ranks. All memory of a job is
// reserved and allocated before any rank is answered. Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/context.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/jobs/tenant_shares.h"
#include "server/control/lanes/rank_memories.h"
#include "server/control/lanes/sum_streams.h"
#include "server/control/ranks/arrivals.h"
#include "server/control/ranks/local_rack.h"
#include "server/control/ranks/seats.h"
#include "server/control/ranks/waiting_joins.h"

namespace phub::server {

// The additional state of a job that spans racks.
struct RackParts {
  std::shared_ptr<RackRun> run;
  std::shared_ptr<JobExchange> exchange;
};

// The tenant that a request names, or the default one.
const std::string& TenantOf(const v1::JoinRequest& request);
// A request that waits. CheckRack has accepted it, so its settings are not needed any more.
v1::JoinRequest Kept(const v1::JoinRequest& request);

class Joins {
 public:
  Joins(Context& context, JobTable& jobs, LocalRack& local_rack, Seats& seats, Sessions& sessions,
        Arrivals& arrivals, PendingCalls& pending_calls, HostMemory& host_memory,
        RankMemories& rank_memories, TenantShares& shares, JobOpener& opener,
        const SumStreams& sums)
      : context_(context),
        jobs_(jobs),
        local_rack_(local_rack),
        seats_(seats),
        sessions_(sessions),
        arrivals_(arrivals),
        pending_calls_(pending_calls),
        host_memory_(host_memory),
        rank_memories_(rank_memories),
        shares_(shares),
        opener_(opener),
        sums_(sums) {}

  // Describes the daemon's rack, and what ranks of the requested job wait for.
  void GetRack(const v1::GetRackRequest& request, Answer<v1::Rack> answer);
  // `peer_address` is the address of the worker.
  void Join(const v1::JoinRequest& request, std::string_view peer_address,
            Answer<v1::JoinResponse> answer);
  // Tries again what waits for memory.
  void TryWaiting();
  TimeNs NextTimer() const { return waiting_.FirstDeadline(); }
  // What a new job needs of this daemon's grant, without keys and what it exchanges with racks.
  Usage GrantNeeded(const JobSettings& settings) const;
  // Checks whether this daemon accepts new jobs now.
  absl::Status CheckRoom(const v1::JoinRequest& request);
  // Reserves and builds everything that a job needs before it has keys, and sends it to every core
  // loop.
  absl::StatusOr<Job*> CreateJob(const v1::JoinRequest& request, const JobSettings& settings,
                                 RackParts racks = {});

 private:
  // A join that needs memory of ended jobs may wait until the deadline.
  void JoinUntil(TimeNs deadline, const v1::JoinRequest& request, std::string_view peer_address,
                 Answer<v1::JoinResponse> answer);
  bool OnlyLeftIsInTheWay(const v1::JoinRequest& request, const JobSettings& settings);
  // The run that the rank asks for ended here before any rank had committed a seat, and its memory
  // is not freed yet. If so, the join is tried again then, as the run may begin again.
  bool WaitsForUnusedRun(TimeNs deadline, const v1::JoinRequest& request,
                         std::string_view peer_address, const Answer<v1::JoinResponse>& answer);
  // A new job that this daemon's grant does not cover waits until it is enlarged, or is refused.
  bool WaitsForGrant(TimeNs deadline, const v1::JoinRequest& given, const JobSettings& settings,
                     std::string_view peer_address, const Answer<v1::JoinResponse>& answer);
  std::uint64_t MemoryOfJob(const Job& job) const;
  absl::Status BuildShards(Job& job);
  absl::Status CheckTenant(const std::string& tenant, const JobSettings& settings);
  absl::Status CheckPlace(const Job& job, const v1::JoinRequest& request,
                          const JobSettings& settings);
  v1::JoinResponse DescribeSeat(const Job& job, Rank rank, std::uint32_t version, bool created);

  Context& context_;
  JobTable& jobs_;
  LocalRack& local_rack_;
  Seats& seats_;
  Sessions& sessions_;
  Arrivals& arrivals_;
  PendingCalls& pending_calls_;
  HostMemory& host_memory_;
  RankMemories& rank_memories_;
  TenantShares& shares_;
  JobOpener& opener_;
  const SumStreams& sums_;
  WaitingJoins waiting_;
};

}  // namespace phub::server
