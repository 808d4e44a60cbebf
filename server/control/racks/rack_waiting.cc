#include "server/control/racks/rack_waiting.h"

#include <algorithm>
#include <vector>

#include "common/base/printable.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_run.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kLossBytesMax = 512;  // several times the length of a daemon's reason

DurationNs Left(TimeNs until, TimeNs now) { return std::max<DurationNs>(0, until - now); }

v1::SessionEvent AwaitedEvent(std::uint32_t rank, const LostElsewhere& lost, TimeNs now) {
  v1::SessionEvent event;
  v1::RankAwaited& awaited = *event.mutable_awaited();
  awaited.set_rank(rank);
  awaited.set_host(lost.host);
  awaited.set_deadline_ns(Left(lost.awaited_until, now));
  return event;
}

void TellAllHere(const Job& job, const v1::SessionEvent& event) {
  for (const Member& member : job.members) {
    if (member.sink) member.sink->Send(event);
  }
}

// Whether rack `from` may report the loss or return of this rank.
bool IsRankOf(const Job& job, RackIndex from, std::uint32_t rank) {
  return job.settings.on_loss == LossPolicy::kWait && rank < job.config.ranks_of_job &&
         rank / job.config.ranks_per_rack == from.value;
}

}  // namespace

void RackWaiting::OnAbsence(const Job& job, Rank rank) {
  PHUB_ON_CONTROL();
  if (job.rack_run == nullptr) return;
  const Member& member = job.members[rank.value];
  v1::PeerMessage message;
  v1::PeerRankAwaited& awaited = *message.mutable_rank_awaited();
  awaited.set_rank(rank.value + job.config.rank_base);
  awaited.set_host(member.host);
  awaited.set_awaited_for_ns(Left(member.awaited_until, context_.clock.Now()));
  awaited.set_loss(member.absence);
  messages_.SendToRacks(job, message);
}

void RackWaiting::OnReturn(const Job& job, Rank rank, bool restarted) {
  PHUB_ON_CONTROL();
  if (job.rack_run == nullptr) return;
  v1::PeerMessage message;
  message.mutable_rank_returned()->set_rank(rank.value + job.config.rank_base);
  message.mutable_rank_returned()->set_restarted(restarted);
  messages_.SendToRacks(job, message);
}

void RackWaiting::HandleRankAwaited(Job& job, RackIndex from, const v1::PeerRankAwaited& awaited) {
  PHUB_ON_CONTROL();
  if (!IsRankOf(job, from, awaited.rank())) {
    return context_.counters.Add(ControlCounter::peers_refused_place);
  }
  const TimeNs now = context_.clock.Now();
  LostElsewhere& lost = job.rack_run->racks[from.value].lost[awaited.rank()];
  lost.host = Printable(awaited.host(), kNameBytesMax);
  lost.loss = Printable(awaited.loss(), kLossBytesMax);
  lost.awaited_until =
      now + std::clamp<DurationNs>(awaited.awaited_for_ns(), 0, job.settings.wait_timeout);
  context_.log.Warning(
      "event=rank_lost_elsewhere tenant={} job=\"{}\" rank={} rack={} host=\"{}\" reason=\"{}\"",
      job.account.tenant, job.name(), awaited.rank(), from.value, lost.host, lost.loss);
  TellAllHere(job, AwaitedEvent(awaited.rank(), lost, now));
}

void RackWaiting::HandleRankReturned(Job& job, RackIndex from,
                                     const v1::PeerRankReturned& returned) {
  PHUB_ON_CONTROL();
  if (!IsRankOf(job, from, returned.rank()) ||
      job.rack_run->racks[from.value].lost.erase(returned.rank()) == 0) {
    return context_.counters.Add(ControlCounter::peers_refused_place);
  }
  context_.log.Info(
      "event=rank_returned_elsewhere tenant={} job=\"{}\" rank={} rack={} restarted={}",
      job.account.tenant, job.name(), returned.rank(), from.value, returned.restarted());
  v1::SessionEvent event;
  event.mutable_returned()->set_rank(returned.rank());
  event.mutable_returned()->set_restarted(returned.restarted());
  TellAllHere(job, event);
}

std::optional<v1::SessionEvent> RackWaiting::FirstAwaitedFrom(const Job& job,
                                                              std::uint32_t rank) const {
  PHUB_ON_CONTROL();
  const auto lost = FirstLostFrom(job, rank);
  if (!lost.has_value()) return std::nullopt;
  return AwaitedEvent(lost->rank, *lost->lost, context_.clock.Now());
}

std::optional<LostRank> FirstLostFrom(const Job& job, std::uint32_t rank) {
  if (job.rack_run == nullptr || !job.running()) return std::nullopt;
  const std::vector<PeerRack>& racks = job.rack_run->racks;
  for (std::size_t at = rank / job.config.ranks_per_rack; at < racks.size(); ++at) {
    const auto found = racks[at].lost.lower_bound(rank);
    if (found != racks[at].lost.end()) return LostRank{found->first, &found->second};
  }
  return std::nullopt;
}

void DescribeLost(const LostRank& lost, TimeNs now, v1::WorkerInfo& worker) {
  worker.set_rank(lost.rank);
  worker.set_host(lost.lost->host);
  worker.set_state(ToString(Member::State::kLost));
  worker.set_awaited_for_ns(Left(lost.lost->awaited_until, now));
  worker.set_loss(lost.lost->loss);
}

void DescribeLost(const LostRank& lost, TimeNs now, v1::StalledRank& waited_for) {
  waited_for.set_rank(lost.rank);
  waited_for.set_host(lost.lost->host);
  waited_for.set_state(ToString(Member::State::kLost));
  waited_for.set_awaited_for_ns(Left(lost.lost->awaited_until, now));
}

}  // namespace phub::server
