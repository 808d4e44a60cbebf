// Groups that have members in several racks of a job. Rack 0 gives each batch of their keys its
// place in the order of all, because racks would otherwise give numbers in different order:
//
//   the rack of a member                 rack 0                      the racks of the members
//   AddKeys -> group_asked   ----->      first: plan, numbers  ----> group_keys: build, open lanes
//   (later calls wait)                   again: compare keys         all have it <- group_added ->
//                                                                    their calls of AddKeys end
//
// The plan is made for the racks with members, and other racks neither sum nor relay. It never
// changes. Lanes that it needs and the job's plan does not are opened with the group's first batch.
// Chunks are placed by the group's own loads, which are the same in all its racks. Owned by
// Control; under control's lock.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/job_observer.h"
#include "server/control/jobs/job_table.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/keys/key_build.h"

namespace phub::server {

class Ending;
class GroupKeys;
class PeerLanes;
class PendingCalls;
class RackMessages;
class RackPlans;
struct GroupMade;

inline constexpr std::uint32_t kWideGroupsMax = 1u << 16;  // per job

inline std::vector<std::uint32_t> RanksIn(const v1::GroupSpec& spec) {
  return {spec.ranks().begin(), spec.ranks().end()};
}

// The group's name decides the order of core loops that breaks ties, as the job's does.
inline std::vector<PlacementBin> BinsOfGroup(const Job& job, const std::string& group) {
  return BinsForJob(static_cast<std::uint32_t>(job.bins.size()),
                    fmt::format("{}/{}", job.name(), group));
}

class RackGroups final : public GroupRacks, public JobObserver {
 public:
  RackGroups(Context& context, JobTable& jobs, Ending& ending, HostMemory& host_memory,
             GroupKeys& keys, PendingCalls& pending_calls, PeerLanes& peer_lanes,
             RackMessages& messages, RackPlans& plans)
      : context_(context),
        jobs_(jobs),
        ending_(ending),
        host_memory_(host_memory),
        keys_(keys),
        pending_calls_(pending_calls),
        peer_lanes_(peer_lanes),
        messages_(messages),
        plans_(plans) {}

  std::size_t BatchBytesMax() const override;
  void AskForBatch(Job& job, Rank rank, std::shared_ptr<const v1::AddKeysRequest> request,
                   std::function<void(const absl::Status&)> then) override;
  bool HaveBatches(const Job& job, const Group& group, std::uint32_t batches) const override;

  // A message about groups; others are ignored. `owner` keeps it.
  void HandleMessage(Job& job, RackIndex from, const v1::PeerMessage& message,
                     const std::shared_ptr<const void>& owner);
  // Reports batches that this rack has now. Called at every poll of a job that spans racks.
  void AnnounceProgress(Job& job);

  // JobObserver.
  void OnOver(Job& job, const absl::Status& why) override;

 private:
  using Asked = std::shared_ptr<const v1::PeerGroupAsked>;
  using Keys = std::shared_ptr<const v1::PeerGroupKeys>;
  void HandleAsked(Job& job, RackIndex from, Asked asked);
  void HandleKeys(Job& job, RackIndex from, Keys keys);
  void HandleAdded(Job& job, RackIndex from, const v1::PeerGroupAdded& added);
  bool IsWellFormed(const Job& job, const v1::GroupSpec& spec, std::uint32_t rank) const;
  std::uint64_t RacksOf(const Job& job, const v1::GroupSpec& spec) const;
  void Serve(Job& job, const Asked& asked);
  void ServeNext(Job& job);
  void Place(Job& job, std::size_t made, const Asked& asked);
  void Give(Job& job, std::size_t made, const Asked& asked, KeyBuild& placed);
  void Compare(Job& job, const Group& group, const Asked& asked);
  absl::StatusOr<std::size_t> FindOrMake(Job& job, const v1::PeerGroupAsked& asked);
  void Take(Job& job, const Keys& keys);
  std::shared_ptr<Group> MakeGroup(Job& job, const v1::PeerGroupKeys& keys);
  void Answer(Job& job, const v1::PeerGroupKeys& keys);
  std::uint32_t BatchesHere(const Job& job, const Group& group) const;
  void FailOverKeys(Job& job, const std::string& what);

  Context& context_;
  JobTable& jobs_;
  Ending& ending_;
  HostMemory& host_memory_;
  GroupKeys& keys_;
  PendingCalls& pending_calls_;
  PeerLanes& peer_lanes_;
  RackMessages& messages_;
  RackPlans& plans_;
};

}  // namespace phub::server
