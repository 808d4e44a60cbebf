#include "server/control/racks/rack_invariants.h"

#include <algorithm>

#include "common/base/check.h"
#include "server/control/racks/rack_run.h"

namespace phub::server {
namespace {

// X1 to X3.
void CheckPeer(const Job& job, RackIndex rack, bool neighbor, bool of_group,
               std::size_t core_count) {
  const RackRun& run = *job.rack_run;
  const PeerRack& peer = run.racks[rack.value];
  PHUB_CHECK(peer.lanes.size() == (job.released() ? 0 : core_count), "X1 job={} rack={}",
             job.name(), rack.value);
  for (const PeerLanePlace& place : peer.lanes) {
    PHUB_CHECK(neighbor || of_group || place.connection == nullptr, "X1 job={} rack={}", job.name(),
               rack.value);
    PHUB_CHECK(place.connection == nullptr || !place.description.empty(), "X1 job={} rack={}",
               job.name(), rack.value);
  }
  const bool sound = run.protocol.state(RunRegion::kFault) == RunState::kSound;
  const bool at_work = run.protocol.peer(rack, PeerRegion::kRanks) == PeerState::kAtWork;
  // A core loop reports one fault of a job. If that was the lane of a rank that was leaving, the
  // loss of a lane to a rack that has ended the job is not reported as a fault.
  const bool all_here =
      !job.diagnosis && std::ranges::none_of(job.members, [](const Member& member) {
        return member.state == Member::State::kLeft;
      });
  if (job.running() && run.protocol.standing() && neighbor && sound && at_work && all_here) {
    const auto is_attached = [](const PeerLanePlace& place) { return place.connection != nullptr; };
    PHUB_CHECK(std::ranges::all_of(peer.lanes, is_attached), "X2 job={} rack={}", job.name(),
               rack.value);
  }
  PHUB_CHECK(peer.lost.empty() || job.settings.on_loss == LossPolicy::kWait, "X3 job={} rack={}",
             job.name(), rack.value);
}

}  // namespace

void CheckRackRun(const Job& job, RackIndex self, std::size_t core_count) {
  const RackRun& run = *job.rack_run;
  PHUB_CHECK(run.exchange == job.exchange && run.racks.size() >= job.settings.racks,
             "X4 job={} racks={}", job.name(), run.racks.size());
  for (std::uint32_t rack = 0; rack < run.racks.size(); ++rack) {
    if (rack == self.value) continue;
    const bool neighbor = (run.exchange->plan.neighbors >> rack & 1) != 0;
    const bool of_group = (run.group_neighbors >> rack & 1) != 0;
    CheckPeer(job, RackIndex{rack}, neighbor, of_group, core_count);
  }
  PHUB_CHECK(!job.running() || run.protocol.state(RunRegion::kFault) != RunState::kFailed,
             "X5 job={}", job.name());
  PHUB_CHECK(!run.protocol.put_off_due() || !job.running() || !run.put_off.code().empty(),
             "X6 job={}", job.name());
  const bool all_left = std::ranges::all_of(
      job.members, [](const Member& member) { return member.state == Member::State::kLeft; });
  PHUB_CHECK(!job.running() || !run.protocol.left() || all_left, "X7 job={}", job.name());
}

}  // namespace phub::server
