#include "server/control/racks/rack_arrivals.h"

#include <algorithm>

#include "common/base/printable.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_run.h"
#include "server/control/ranks/arrivals.h"

namespace phub::server {
namespace {

// For texts of other daemons, which have limited them, too.
constexpr int kHintsMax = 4;
constexpr std::size_t kHintBytesAccepted = 1024;
constexpr std::size_t kRefusalBytesAccepted = 4096;

bool BelongsTo(const Job& job, RackIndex rack, std::uint32_t rank) {
  return rank < job.config.ranks_of_job && rank / job.config.ranks_per_rack == rack.value;
}

void NotifyRanks(const Job& job, const v1::SessionEvent& event) {
  for (const Member& member : job.members) {
    if (member.sink) member.sink->Send(event);
  }
}

}  // namespace

bool RackArrivals::OnMissing(Job& job, const v1::RanksMissing& missing) {
  PHUB_ON_CONTROL();
  if (job.rack_run == nullptr) return false;
  const TimeNs now = context_.clock.Now();
  job.rack_run->racks[context_.options.rack_index].missing = {missing, now};
  job.rack_run->notice_due = now + kReportsAwaited;
  v1::PeerMessage message;
  *message.mutable_ranks_missing()->mutable_missing() = missing;
  messages_.SendToRacks(job, message);
  return true;
}

void RackArrivals::OnRefused(const Job& job, const v1::RankRefused& refused) {
  PHUB_ON_CONTROL();
  if (job.rack_run == nullptr) return;
  v1::PeerMessage message;
  *message.mutable_rank_refused()->mutable_refused() = refused;
  messages_.SendToRacks(job, message);
}

void RackArrivals::HandleMissing(Job& job, RackIndex from, const v1::RanksMissing& missing) {
  PHUB_ON_CONTROL();
  const bool are_theirs = std::ranges::all_of(
      missing.ranks(), [&](std::uint32_t rank) { return BelongsTo(job, from, rank); });
  if (!are_theirs || missing.ranks_size() > static_cast<int>(job.config.ranks_per_rack)) {
    return context_.counters.Add(ControlCounter::peers_refused_place);
  }
  v1::RanksMissing accepted;
  *accepted.mutable_ranks() = missing.ranks();
  accepted.set_waiting_ns(std::max<DurationNs>(0, missing.waiting_ns()));
  for (const std::string& hint : missing.hints()) {
    if (accepted.hints_size() == kHintsMax) break;
    accepted.add_hints(Printable(hint, kHintBytesAccepted));
  }
  const TimeNs now = context_.clock.Now();
  RackRun& run = *job.rack_run;
  run.racks[from.value].missing = {std::move(accepted), now};
  if (run.notice_due == 0) run.notice_due = now + kReportsAwaited;
}

void RackArrivals::HandleRefused(Job& job, RackIndex from, const v1::RankRefused& refused) {
  PHUB_ON_CONTROL();
  if (!BelongsTo(job, from, refused.rank())) {
    return context_.counters.Add(ControlCounter::peers_refused_place);
  }
  v1::SessionEvent event;
  event.mutable_refused()->set_rank(refused.rank());
  event.mutable_refused()->set_host(Printable(refused.host(), kNameBytesMax));
  event.mutable_refused()->set_message(Printable(refused.message(), kRefusalBytesAccepted));
  NotifyRanks(job, event);
}

// One notice about all racks whose reports are recent: a rack whose ranks have joined sends none.
void RackArrivals::Check(Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  if (now < NextTimer(job)) return;
  RackRun& run = *job.rack_run;
  run.notice_due = 0;
  v1::SessionEvent event;
  v1::RanksMissing& notice = *event.mutable_missing();
  for (const PeerRack& rack : run.racks) {
    if (rack.missing.at == 0 || now - rack.missing.at > Arrivals::kNoticeInterval / 2) continue;
    notice.mutable_ranks()->MergeFrom(rack.missing.report.ranks());
    notice.mutable_hints()->MergeFrom(rack.missing.report.hints());
    notice.set_waiting_ns(std::max(notice.waiting_ns(), rack.missing.report.waiting_ns()));
  }
  job.arrivals.hints.assign(notice.hints().begin(), notice.hints().end());
  NotifyRanks(job, event);
}

TimeNs RackArrivals::NextTimer(const Job& job) {
  if (!job.running() || job.rack_run == nullptr || job.rack_run->notice_due == 0) return kNever;
  return job.rack_run->notice_due;
}

}  // namespace phub::server
