#include "server/control/racks/rack_late_rounds.h"

#include <algorithm>
#include <set>

#include "common/base/printable.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_run.h"
#include "server/control/ranks/late_rounds.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

bool IsOf(const StallReport::Round& round, std::uint32_t key, std::uint64_t iteration) {
  return round.key.value == key && round.iteration.value == iteration;
}

// The live ranks that have not pushed the round.
std::set<std::uint32_t> LateRanks(const Job& job, const StallQuery& query,
                                  const StallReport::Round& round) {
  std::set<std::uint32_t> late;
  for (const auto& report : query.reports) {
    for (std::uint32_t i = 0; i < report->count; ++i) {
      const StallReport::Entry& entry = report->entries[i];
      if (!IsOf(round, entry.key.value, entry.iteration.value)) continue;
      for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
        if (IsLate(job, entry, rank)) late.insert(rank);
      }
    }
  }
  return late;
}

}  // namespace

void RackLateRounds::OnRoundWaits(Job& job, const StallReport::Round& round, DurationNs usual) {
  PHUB_ON_CONTROL();
  if (job.rack_run == nullptr) return;
  job.rack_run->late_question = LateQuestion{round, usual};
  v1::PeerMessage message;
  message.mutable_round_waits()->set_key(round.key.value);
  message.mutable_round_waits()->set_iteration(round.iteration.value);
  messages_.SendToRacks(job, message);
}

void RackLateRounds::HandleQuestion(Job& job, RackIndex from, const v1::PeerRoundWaits& waits) {
  PHUB_ON_CONTROL();
  // One from each rack, and one of this daemon's own.
  if (job.queries.size() > job.rack_run->racks.size()) return;
  const StallReport::Round round{KeyIndex{waits.key()}, Iteration{waits.iteration()}, 0};
  stall_queries_.AskForStalls(
      job, context_.options.report_timeout,
      [this, &job, from, round](StallQuery& query) {
        const std::set<std::uint32_t> late = LateRanks(job, query, round);
        if (!job.running() || late.empty()) return;
        v1::PeerMessage message;
        v1::PeerRoundLate& answer = *message.mutable_round_late();
        answer.set_key(round.key.value);
        answer.set_iteration(round.iteration.value);
        answer.set_late_count(static_cast<std::uint32_t>(late.size()));
        for (const std::uint32_t rank : late) {
          if (answer.ranks_size() == LateRounds::kRanksNamed) break;
          v1::LateRank& named = *answer.add_ranks();
          named.set_rank(rank + job.config.rank_base);
          named.set_host(job.members[rank].host);
        }
        messages_.SendToRack(from, job.account.incarnation, message);
      },
      round);
}

void RackLateRounds::HandleAnswer(Job& job, RackIndex from, const v1::PeerRoundLate& late) {
  PHUB_ON_CONTROL();
  const std::optional<LateQuestion>& question = job.rack_run->late_question;
  if (!question || !IsOf(question->round, late.key(), late.iteration())) return;
  v1::SessionEvent event;
  v1::RoundLate& told = *event.mutable_late();
  std::string names;
  for (const v1::LateRank& each : late.ranks()) {
    const bool is_theirs = each.rank() < job.config.ranks_of_job &&
                           each.rank() / job.config.ranks_per_rack == from.value;
    if (!is_theirs || told.ranks_size() == LateRounds::kRanksNamed) {
      return context_.counters.Add(ControlCounter::peers_refused_place);
    }
    v1::LateRank& rank = *told.add_ranks();
    rank.set_rank(each.rank());
    rank.set_host(Printable(each.host(), kNameBytesMax));
    names += fmt::format("{}rank {} ({})", names.empty() ? "" : ", ", rank.rank(), rank.host());
  }
  told.set_key(DescribeKey(job, question->round.key));
  told.set_iteration(late.iteration());
  told.set_waiting_ns(context_.clock.Now() - question->round.since);
  told.set_usual_ns(question->usual);
  told.set_late_count(std::max(late.late_count(), static_cast<std::uint32_t>(told.ranks_size())));
  context_.log.Info(
      "event=round_late_elsewhere tenant={} job=\"{}\" rack={} waiting_for=\"{}\" ranks={} "
      "key=\"{}\" iteration={} waiting_s={:.1f} usual_s={:.3f}",
      job.account.tenant, job.name(), from.value, names, told.late_count(), told.key(),
      told.iteration(), static_cast<double>(told.waiting_ns()) / kSecond,
      static_cast<double>(told.usual_ns()) / kSecond);
  for (const Member& member : job.members) {
    if (member.sink) member.sink->Send(event);
  }
}

}  // namespace phub::server
