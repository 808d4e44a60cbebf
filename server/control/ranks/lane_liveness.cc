#include "server/control/ranks/lane_liveness.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/transport/silence_meter.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

using transport::SilenceJudge;

constexpr int kLooksMin = 4;  // per liveness_timeout

bool LanesAreKept(const Member& member) {
  return !member.lanes.empty() && std::ranges::all_of(member.lanes, [](const LanePlace& place) {
    return place.connection != nullptr && place.connection->keeps_alive();
  });
}

SilenceJudge JudgeOf(const Member& member) {
  SilenceJudge judge;
  for (std::uint32_t core = 0; core < member.lanes.size(); ++core) {
    judge.Add(core, member.lanes[core].connection->silence_meter().silence());
  }
  return judge;
}

// Completes "rank 2 ..." and, for an absence, "it ...".
std::string DescribeAll(const Member& member, const SilenceJudge& judge, bool has_heartbeats,
                        DurationNs timeout) {
  const std::string lanes = member.lanes.size() == 1
                                ? fmt::format("its lane ({})", member.lanes[0].description)
                                : fmt::format("all its {} lanes ({}, ...)", member.lanes.size(),
                                              member.lanes[0].description);
  return fmt::format("has been silent on {} for {} (liveness_timeout {}){}", lanes,
                     FormatAge(judge.least()), FormatAge(timeout),
                     has_heartbeats
                         ? ", although its heartbeats arrive: the network between it and "
                           "the daemon's data ports probably fails"
                         : "");
}

std::string DescribeOne(const Member& member, const SilenceJudge& judge, DurationNs timeout) {
  return fmt::format(
      "has been silent on its lane to core {} ({}) for {} (liveness_timeout {}), although its "
      "other "
      "lanes work",
      judge.most_silent(), member.lanes[judge.most_silent()].description, FormatAge(judge.most()),
      FormatAge(timeout));
}

}  // namespace

void LaneLiveness::Check(TimeNs now) {
  if (now < next_) return;
  DurationNs look_again = context_.options.liveness_timeout / kLooksMin;
  for (const auto& job : jobs_.jobs()) {
    for (std::uint32_t rank = 0; rank < job->members.size(); ++rank) {
      if (!job->running() || job->diagnosis) break;
      CheckRank(*job, Rank{rank}, now, look_again);
    }
  }
  next_ = now + look_again;
}

void LaneLiveness::CheckRank(Job& job, Rank rank, TimeNs now, DurationNs& look_again) {
  Member& member = job.members[rank.value];
  const DurationNs timeout = context_.options.liveness_timeout;
  member.lanes_kept = member.present() && LanesAreKept(member);
  SilenceJudge judge;
  SilenceJudge::Verdict verdict = SilenceJudge::Verdict::kAlive;
  if (member.lanes_kept) {
    judge = JudgeOf(member);
    verdict = judge.Judge(timeout);
    look_again = std::min(look_again, judge.LookAgain(timeout));
  }
  const bool has_heartbeats = now - member.last_heard < timeout / 2;  // four per timeout
  if (verdict == SilenceJudge::Verdict::kAlive) {
    if (member.lanes_kept) {
      member.last_heard = std::max(member.last_heard, now - judge.least());
      member.silent = false;
    }
    if (!std::exchange(member.lane_silence, {}).empty()) presence_.CheckPresence(job, rank);
    return;
  }
  if (verdict == SilenceJudge::Verdict::kAllSilent) {
    return Blame(job, rank, Diagnosis::Cause::kSilent, {},
                 DescribeAll(member, judge, has_heartbeats, timeout));
  }
  Blame(job, rank, Diagnosis::Cause::kLaneSilent, CoreIndex{judge.most_silent()},
        DescribeOne(member, judge, timeout));
}

void LaneLiveness::Blame(Job& job, Rank rank, Diagnosis::Cause cause, CoreIndex core,
                         std::string what) {
  Member& member = job.members[rank.value];
  if (!member.lane_silence.empty()) return;
  context_.counters.Add(cause == Diagnosis::Cause::kSilent ? ControlCounter::workers_silent
                                                           : ControlCounter::lanes_silent);
  if (job.settings.on_loss == LossPolicy::kWait) {
    member.lane_silence = std::move(what);
    return presence_.CheckPresence(job, rank);
  }
  Diagnosis diagnosis;
  diagnosis.cause = cause;
  diagnosis.rank = rank;
  diagnosis.core = core;
  diagnosis.loss = std::move(what);
  diagnoses_.BeginDiagnosis(job, std::move(diagnosis));
}

}  // namespace phub::server
