// Rack 0's list of the groups that have members in several racks: their plans, and the place of
// each batch of their keys in the order of all. The order of messages is in rack_groups.h. Owned by
// Control; under control's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/job.h"
#include "server/control/jobs/peer_message.h"
#include "server/control/keys/key_build.h"

namespace phub::server {

class Ending;
class RackGroups;
class RackMessages;
struct GroupMade;
struct GroupPlanText;

class GroupList {
 public:
  GroupList(Context& context, Ending& ending, HostMemory& host_memory, RackMessages& messages,
            RackGroups& groups)
      : context_(context),
        ending_(ending),
        host_memory_(host_memory),
        messages_(messages),
        groups_(groups) {}

  using Asked = std::shared_ptr<const v1::PeerGroupAsked>;
  void HandleAsked(Job& job, RackIndex from, const Asked& asked);
  void HandleReserved(Job& job, RackIndex from, const v1::PeerGroupReserved& reserved);
  void HandleReleased(Job& job, RackIndex from, const v1::PeerGroupReleased& released);
  void HandleStep(Job& job, RackIndex from, const v1::PeerGroupRemoval& removal);
  // Called at every poll: members may have left.
  void RefuseRemovals(Job& job);

 private:
  void Serve(Job& job, const Asked& asked);
  void Begin(Job& job);
  void ServeNext(Job& job);
  absl::StatusOr<GroupMade*> Find(Job& job, const v1::PeerGroupAsked& asked);
  void MakePlan(Job& job, const Asked& asked);
  GroupMade& Make(Job& job, const v1::PeerGroupAsked& asked, GroupPlanText plan);
  void Unmake(Job& job, std::uint32_t number);
  void Place(Job& job, GroupMade& made, const Asked& asked);
  void Give(Job& job, GroupMade& made, const Asked& asked, KeyBuild& placed);
  void Compare(Job& job, const Group& group, const Asked& asked);
  SharedPeerMessage SendToGroup(Job& job, std::uint64_t racks, v1::PeerMessage message);
  static bool IsAnswered(const Job& job, const v1::PeerGroupAsked& asked);
  static GroupMade* FindAwaited(Job& job, RackIndex from, std::uint32_t number, std::uint32_t batch,
                                bool is_refused);
  void Decide(Job& job, GroupMade& made);
  void EndAttempt(Job& job, GroupMade& made);
  static std::string DepartedMember(const Job& job, const Group& group);
  void TakeNextStep(Job& job, GroupMade& made);
  void TellStep(Job& job, std::uint64_t racks, const v1::PeerGroupRemoval& step);

  Context& context_;
  Ending& ending_;
  HostMemory& host_memory_;
  RackMessages& messages_;
  RackGroups& groups_;
};

}  // namespace phub::server
