// Groups that have members in several racks of a job. Rack 0 gives each batch of their keys its
// place in the order of all, because racks would otherwise give numbers in different order:
//
//   the rack of a member                 rack 0                      the racks of the members
//   AddKeys -> group_asked   ----->      first: plan, numbers  ----> group_keys: build, reserve
//   (later calls wait)                   again: compare keys
//                                        all have answered     <---- group_reserved
//                                        group_decided: yes    ----> hand out, open lanes
//                                                                    all have it <- group_added ->
//                                                                    their calls of AddKeys end
//                                        group_decided: no     ----> release; the calls fail
//                                        try again when asked  <---- group_released
//
// A removal takes the steps of PeerGroupStep: each rack reports a step (group_removal), and takes
// the next one when rack 0 says that all have (group_removal back).
//
// A rack that lacks memory or quota for a batch cannot add it, and then no rack has it: the batch
// is `held` (BatchRecord) until rack 0 has decided.
//
// The plan is made for the racks with members, and other racks neither sum nor relay. It never
// changes. Lanes that it needs and the job's plan does not are opened with the group's first batch.
// Chunks are placed by the group's own loads, which are the same in all its racks. Plans are made,
// read and verified without control's lock. Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/job_observer.h"
#include "server/control/jobs/peer_racks.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {

class Ending;
class GroupKeys;
class GroupList;
class PeerLanes;
class PendingCalls;
class RackMessages;
struct GroupReservation;

class RackGroups final : public GroupRacks, public JobObserver {
 public:
  RackGroups(Context& context, Ending& ending, GroupKeys& keys, GroupList& list,
             PendingCalls& pending_calls, PeerLanes& peer_lanes, RackMessages& messages)
      : context_(context),
        ending_(ending),
        keys_(keys),
        list_(list),
        pending_calls_(pending_calls),
        peer_lanes_(peer_lanes),
        messages_(messages) {}

  std::size_t BatchBytesMax() const override;
  void AskForBatch(Job& job, Rank rank, std::shared_ptr<const v1::AddKeysRequest> request,
                   std::function<void(const absl::Status&)> then) override;
  bool HaveBatches(const Job& job, const Group& group, std::uint32_t batches) const override;
  void TellOfRemoval(Job& job, const Group& group, v1::PeerGroupStep step) override;

  // A message about groups; others are ignored. `owner` keeps it.
  void HandleMessage(Job& job, RackIndex from, const v1::PeerMessage& message,
                     const std::shared_ptr<const void>& owner);
  // Reports batches that this rack has now. Called at every poll of a job that spans racks.
  void AnnounceProgress(Job& job);
  // Whether AnnounceProgress waits for work that may end without a call or an event.
  static bool Waits(const Job& job);

  // Messages of rack 0, from this daemon's own list if it is there.
  using Keys = std::shared_ptr<const v1::PeerGroupKeys>;
  void Take(Job& job, const Keys& keys);  // its group has members in this rack
  void HandleDecided(Job& job, RackIndex from, const v1::PeerGroupDecided& decided);
  void GoOnRemoving(Job& job, const v1::PeerGroupRemoval& step);

  // JobObserver.
  void OnOver(Job& job, const absl::Status& why) override;

 private:
  using Plan = std::shared_ptr<const exchange::RackPlan>;
  void HandleKeys(Job& job, RackIndex from, const Keys& keys);
  void HandleAdded(Job& job, RackIndex from, const v1::PeerGroupAdded& added);
  void HandleRemoval(Job& job, RackIndex from, const v1::PeerGroupRemoval& removal);

  // Batches that rack 0 has not decided about (group_reservations.cc).
  void Build(Job& job, const Keys& keys, const Plan& plan);
  void OnBuilt(Job& job, std::uint32_t number, const absl::Status& status);
  std::shared_ptr<Group> MakeGroup(Job& job, const v1::PeerGroupKeys& keys, const Plan& plan);
  void AnswerReserved(Job& job, GroupReservation& reservation, const absl::Status& status);
  void Decided(Job& job, const v1::PeerGroupDecided& decided);
  void Commit(Job& job, GroupReservation reservation);
  void Advance(Job& job);
  bool AdvanceRefused(Job& job, GroupReservation& reservation);
  void Release(Job& job, std::uint32_t number);
  static std::vector<std::function<void(const absl::Status&)>> TakeWaiting(
      Job& job, const v1::PeerGroupKeys& keys);
  std::uint32_t BatchesHere(const Job& job, const Group& group) const;

  Context& context_;
  Ending& ending_;
  GroupKeys& keys_;
  GroupList& list_;
  PendingCalls& pending_calls_;
  PeerLanes& peer_lanes_;
  RackMessages& messages_;
};

}  // namespace phub::server
