#include "server/control/ranks/arrivals.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "common/base/log.h"
#include "common/base/printable.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kRanksNamed = 16;
constexpr std::size_t kRefusalBytesMax = 4096;

// Numbered as in the whole job.
std::vector<std::uint32_t> MissingRanks(const Job& job) {
  std::vector<std::uint32_t> missing;
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    if (job.members[rank].state == Member::State::kAwaited) {
      missing.push_back(rank + job.config.rank_base);
    }
  }
  return missing;
}

// "1, 3", or the first of them and "and 40 others".
std::string RanksText(const std::vector<std::uint32_t>& ranks) {
  const std::size_t named = std::min(ranks.size(), kRanksNamed);
  std::string text = fmt::format("{}", fmt::join(ranks.begin(), ranks.begin() + named, ", "));
  if (named < ranks.size()) text += fmt::format(" and {} others", ranks.size() - named);
  return text;
}

void SendAll(const Job& job, const v1::SessionEvent& event) {
  for (const Member& member : job.members) {
    if (member.sink) member.sink->Send(event);
  }
}

}  // namespace

bool Arrivals::Concerns(const Job& job) const {
  return context_.options.rack_self == 0 && job.running() && !job.diagnosis &&
         std::any_of(job.members.begin(), job.members.end(),
                     [](const Member& member) { return member.state == Member::State::kAwaited; });
}

TimeNs Arrivals::NextTimer(const Job& job) const {
  if (!Concerns(job)) return kNever;
  const TimeNs notice = job.arrivals_noticed_at == 0 ? job.created_at + kFirstNotice
                                                     : job.arrivals_noticed_at + kNoticeInterval;
  const TimeNs end =
      job.settings.join_timeout == 0 ? kNever : job.created_at + job.settings.join_timeout;
  return std::min(notice, end);
}

void Arrivals::Check(Job& job, TimeNs now) {
  if (now < NextTimer(job)) return;
  const DurationNs timeout = job.settings.join_timeout;
  if (timeout != 0 && now - job.created_at >= timeout) return EndInVain(job);
  job.arrivals_noticed_at = now;
  Notify(job, now);
}

void Arrivals::Notify(Job& job, TimeNs now) const {
  const std::vector<std::uint32_t> missing = MissingRanks(job);
  LogInfo("event=ranks_missing tenant={} job=\"{}\" missing=\"{}\" ranks={} waiting_s={:.0f}",
          job.account.tenant, job.name(), RanksText(missing), job.settings.world_size,
          static_cast<double>(now - job.created_at) / kSecond);
  v1::SessionEvent event;
  v1::RanksMissing& notice = *event.mutable_missing();
  for (const std::uint32_t rank : missing) notice.add_ranks(rank);
  notice.set_waiting_ns(now - job.created_at);
  SendAll(job, event);
}

void Arrivals::NoteRefusal(const Job& job, const v1::JoinRequest& request,
                           const absl::Status& why) const {
  const std::uint32_t rank = request.rank() - job.config.rank_base;  // may wrap around
  if (!Concerns(job) || rank >= job.members.size() ||
      job.members[rank].state != Member::State::kAwaited) {
    return;
  }
  v1::SessionEvent event;
  v1::RankRefused& refused = *event.mutable_refused();
  refused.set_rank(request.rank());
  // The request may be refused for its host. Every rank of the job gets the event, and may not read
  // it, so its size is limited.
  refused.set_host(Printable(request.host(), kNameBytesMax));
  refused.set_message(Printable(std::string(why.message()), kRefusalBytesMax));
  SendAll(job, event);
}

void Arrivals::EndInVain(Job& job) {
  const std::vector<std::uint32_t> missing = MissingRanks(job);
  v1::Fault fault = ending_.MakeFault(
      job, "join_timeout",
      fmt::format(
          "{} {} of {} did not join within join_timeout ({}); see why they did not start, "
          "or raise join_timeout",
          missing.size() == 1 ? "rank" : "ranks", RanksText(missing),
          job.settings.ranks_of_job == 0 ? job.settings.world_size : job.settings.ranks_of_job,
          FormatAge(job.settings.join_timeout)));
  context_.counters.Add(ControlCounter::joins_awaited_in_vain);
  ending_.Fail(job, std::move(fault));
}

}  // namespace phub::server
