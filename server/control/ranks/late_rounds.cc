#include "server/control/ranks/late_rounds.h"

#include <algorithm>

#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

struct Progress {
  std::uint64_t timed = 0;  // iterations that `usual` was measured on
  DurationNs usual = 0;
  TimeNs at = 0;  // when the last iteration was complete; 0: not yet
};

Progress ReadProgress(const Job& job) {
  const RoundProgress* const progress = ProgressOf(job);
  if (progress == nullptr) return {};
  return {progress->iterations_timed.Get(), static_cast<DurationNs>(progress->iteration_ns.Get()),
          static_cast<TimeNs>(progress->iteration_at.Get())};
}

DurationNs LateAfter(DurationNs usual) {
  return std::max(LateRounds::kLateAtLeast, LateRounds::kTimesUsual * usual);
}

bool Misses(const StallReport::Entry& round, std::uint32_t rank) {
  return (round.missing[rank / 64] >> (rank % 64) & 1) != 0;
}

// The round that has waited longest for a live rank; null: no round does.
const StallReport::Entry* FindOldest(const Job& job, const StallQuery& query) {
  const StallReport::Entry* oldest = nullptr;
  for (const auto& report : query.reports) {
    for (std::uint32_t i = 0; i < report->count; ++i) {
      const StallReport::Entry& round = report->entries[i];
      if (oldest != nullptr && round.since >= oldest->since) continue;
      bool waits = false;
      for (std::uint32_t rank = 0; rank < job.members.size() && !waits; ++rank) {
        waits = IsLate(job, round, rank);
      }
      if (waits) oldest = &round;
    }
  }
  return oldest;
}

// The round that has waited longest for other racks; null: no round does.
const StallReport::Round* FindOldestAcross(const StallQuery& query) {
  const StallReport::Round* oldest = nullptr;
  for (const auto& report : query.reports) {
    if (!report->across || (oldest != nullptr && report->across->since >= oldest->since)) continue;
    oldest = &*report->across;
  }
  return oldest;
}

}  // namespace

bool IsLate(const Job& job, const StallReport::Entry& round, std::uint32_t rank) {
  return job.members[rank].state == Member::State::kLive && Misses(round, rank);
}

TimeNs LateRounds::NextTimer(const Job& job) const {
  PHUB_ON_CONTROL();
  if (!job.running() || job.diagnosis) return kNever;
  const Progress progress = ReadProgress(job);
  if (progress.timed < kIterationsMin || progress.at == 0) return kNever;
  return std::max(progress.at + LateAfter(progress.usual), job.late_look_at);
}

void LateRounds::Check(Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  if (now < NextTimer(job)) return;
  job.late_look_at = now + kIdleInterval;
  // A core loop that does not answer must not collect queries.
  if (!job.queries.empty()) return;
  stall_queries_.AskForStalls(job, context_.options.report_timeout,
                              [this, &job, usual = ReadProgress(job).usual](StallQuery& query) {
                                if (job.running() && query.complete()) Examine(job, query, usual);
                              });
}

void LateRounds::Examine(Job& job, const StallQuery& query, DurationNs usual) {
  const StallReport::Entry* const here = FindOldest(job, query);
  const StallReport::Round* const across = FindOldestAcross(query);
  const TimeNs here_late_at = here != nullptr ? here->since + LateAfter(usual) : kNever;
  const TimeNs across_late_at = across != nullptr ? across->since + LateAfter(usual) : kNever;
  const TimeNs late_at = std::min(here_late_at, across_late_at);
  if (late_at == kNever) return;
  const TimeNs now = context_.clock.Now();
  job.late_look_at = now < late_at ? late_at : now + kNoticeInterval;
  if (now >= here_late_at) Notify(job, *here, usual);
  if (now >= across_late_at) across_.OnRoundWaits(job, *across, usual);
}

void LateRounds::Notify(const Job& job, const StallReport::Entry& round, DurationNs usual) const {
  v1::SessionEvent event;
  v1::RoundLate& late = *event.mutable_late();
  late.set_key(DescribeKey(job, round.key));
  late.set_iteration(round.iteration.value);
  late.set_waiting_ns(context_.clock.Now() - round.since);
  late.set_usual_ns(usual);
  std::string names;
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    if (!IsLate(job, round, rank)) continue;
    late.set_late_count(late.late_count() + 1);
    if (late.ranks_size() == kRanksNamed) continue;
    late.add_ranks()->set_rank(rank + job.config.rank_base);
    late.mutable_ranks(late.ranks_size() - 1)->set_host(job.members[rank].host);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", DescribeRankBriefly(job, Rank{rank}));
  }
  context_.log.Info(
      "event=round_late tenant={} job=\"{}\" waiting_for=\"{}\" ranks={} key=\"{}\" iteration={} "
      "waiting_s={:.1f} usual_s={:.3f}",
      job.account.tenant, job.name(), names, late.late_count(), late.key(), late.iteration(),
      static_cast<double>(late.waiting_ns()) / kSecond, static_cast<double>(usual) / kSecond);
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    const Member& member = job.members[rank];
    if (member.sink && !Misses(round, rank)) member.sink->Send(event);
  }
}

}  // namespace phub::server
