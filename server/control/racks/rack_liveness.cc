#include "server/control/racks/rack_liveness.h"

#include <algorithm>
#include <vector>

#include "common/transport/silence_meter.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/job_table.h"
#include "server/control/racks/rack_run.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

using exchange::RackBit;
using transport::SilenceJudge;

bool IsKept(const PeerLanePlace& place) {
  return place.connection != nullptr && place.connection->keeps_alive();
}

bool LanesAreKept(const PeerRack& rack) {
  return !rack.lanes.empty() && std::ranges::all_of(rack.lanes, IsKept);
}

bool LostLanes(const PeerRack& rack) {
  return std::ranges::any_of(rack.lanes,
                             [](const auto& lane) { return lane.connection == nullptr; });
}

bool KeepsAnyLane(const RackRun& run) {
  return std::ranges::any_of(
      run.racks, [](const PeerRack& rack) { return std::ranges::any_of(rack.lanes, IsKept); });
}

std::string DescribeLanes(const std::vector<PeerLanePlace>& lanes) {
  if (lanes.size() == 1) return fmt::format("its lane ({})", lanes.front().description);
  return fmt::format("all its {} lanes ({}, ...)", lanes.size(), lanes.front().description);
}

}  // namespace

void RackLiveness::Check(TimeNs now) {
  for (const auto& job : jobs_.jobs()) {
    for (std::uint32_t rack = 0; rack < known_.size(); ++rack) {
      if (!job->running() || job->rack_run == nullptr) break;
      if (rack == context_.options.rack_index) continue;
      const std::optional<std::string> silence = Judge(*job, RackIndex{rack}, now);
      if (!silence) continue;
      context_.counters.Add(ControlCounter::racks_silent);
      // The loss of lanes explains more than silence does, so a deferred loss becomes due now.
      RackProtocol& protocol = job->rack_run->protocol;
      const RackSteps steps = protocol.On(RunEvent::kPeerSilent, RackIndex{rack}, now);
      if (!Has(steps, RackAction::kFail)) continue;
      ending_.Fail(*job, ending_.MakeFault(*job, "rack_silent", *silence));
    }
  }
}

std::optional<std::string> RackLiveness::Judge(const Job& job, RackIndex rack, TimeNs now) {
  const RackRun& run = *job.rack_run;
  const DurationNs timeout = context_.options.liveness_timeout;
  if (((run.exchange->plan.neighbors | run.group_neighbors) & RackBit(rack)) != 0) {
    const PeerRack& peer = run.racks[rack.value];
    if (LanesAreKept(peer)) return JudgeByLanes(run, rack, now);
    const int timeouts = run.protocol.AllLeftBut(rack) && LostLanes(peer) ? kLongTimeouts : 1;
    return JudgeByHeartbeats(job, rack, timeouts * timeout, now);
  }
  if (!run.TakesPart(rack) || KeepsAnyLane(run)) return std::nullopt;  // its neighbors judge it
  return JudgeByHeartbeats(job, rack, timeout, now);
}

std::optional<std::string> RackLiveness::JudgeByLanes(const RackRun& run, RackIndex rack,
                                                      TimeNs now) {
  const ControlOptions& options = context_.options;
  const std::vector<PeerLanePlace>& lanes = run.racks[rack.value].lanes;
  SilenceJudge judge;
  for (std::uint32_t core = 0; core < lanes.size(); ++core) {
    judge.Add(core, lanes[core].connection->silence_meter().silence());
  }
  switch (judge.Judge(options.liveness_timeout)) {
    case SilenceJudge::Verdict::kAlive: return std::nullopt;
    case SilenceJudge::Verdict::kAllSilent: {
      const bool has_heartbeats = now - known_.LastHeard(rack) < options.liveness_timeout / 2;
      return fmt::format(
          "the daemon of {} has been silent on {} for {} (liveness_timeout {}){}{}",
          options.DescribeRack(rack), DescribeLanes(lanes), FormatAge(judge.least()),
          FormatAge(options.liveness_timeout),
          has_heartbeats ? ", although its heartbeats arrive: the network between the data ports "
                           "of the two daemons probably fails"
                         : "",
          known_.DescribeTrouble(rack));
    }
    case SilenceJudge::Verdict::kLaneSilent: break;
  }
  context_.counters.Add(ControlCounter::lanes_silent);
  return fmt::format(
      "the lane between core {} of {} and core {} of {} ({}) has been silent for {} "
      "(liveness_timeout {}), although their other lanes work",
      judge.most_silent(), options.DescribeRack(RackIndex{options.rack_index}), judge.most_silent(),
      options.DescribeRack(rack), lanes[judge.most_silent()].description, FormatAge(judge.most()),
      FormatAge(options.liveness_timeout));
}

std::optional<std::string> RackLiveness::JudgeByHeartbeats(const Job& job, RackIndex rack,
                                                           DurationNs timeout, TimeNs now) const {
  const TimeNs heard = std::max(known_.LastHeard(rack), job.created_at);
  if (now - heard < timeout) return std::nullopt;
  const bool never = known_.LastHeard(rack) == 0;
  return fmt::format("the daemon of {} {}{}", context_.options.DescribeRack(rack),
                     never ? std::string("has sent no message that this daemon accepted")
                           : fmt::format("has been silent for {}", FormatAge(now - heard)),
                     known_.DescribeTrouble(rack));
}

}  // namespace phub::server
