#include "server/control/ranks/arrivals.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "common/base/printable.h"
#include "common/base/rank_list.h"
#include "common/base/suggest.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kRanksNamed = 16;
constexpr std::size_t kRefusalBytesMax = 4096;
constexpr std::size_t kHintBytesMax = 512;
// Limits of the search for a job with nearly the same name.
constexpr std::size_t kNamesCompared = 64;
constexpr std::size_t kMembersLookedAt = 4096;

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

// "digits" and "digist", "run-1" and "run-2"
bool AreSimilar(const std::string& one, const std::string& other) {
  const std::size_t shorter = std::min(one.size(), other.size());
  const std::size_t longer = std::max(one.size(), other.size());
  const std::size_t allowed = std::clamp<std::size_t>(shorter / 4, 1, 3);
  return longer - shorter <= allowed && EditDistance(one, other) <= allowed;
}

// Numbered as in the whole job. Empty unless each of these ranks is missing in `job`, and some rank
// is missing in `other`, too: then the two jobs probably should be one.
std::vector<std::uint32_t> RanksThatComplete(const Job& job, const Job& other) {
  std::vector<std::uint32_t> present;
  bool waits = false;
  for (std::uint32_t rank = 0; rank < other.members.size(); ++rank) {
    if (other.members[rank].state == Member::State::kAwaited) {
      waits = true;
      continue;
    }
    if (job.members[rank].state != Member::State::kAwaited) return {};
    present.push_back(rank + other.config.rank_base);
  }
  return waits ? present : std::vector<std::uint32_t>();
}

const char* RankOrRanks(const std::vector<std::uint32_t>& ranks) {
  return ranks.size() == 1 ? "rank" : "ranks";
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
  PHUB_ON_CONTROL();
  if (!Concerns(job)) return kNever;
  const TimeNs notice = job.arrivals.noticed_at == 0 ? job.created_at + kFirstNotice
                                                     : job.arrivals.noticed_at + kNoticeInterval;
  const TimeNs end =
      job.settings.join_timeout == 0 ? kNever : job.created_at + job.settings.join_timeout;
  return std::min(notice, end);
}

void Arrivals::Check(Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  if (now < NextTimer(job)) return;
  const DurationNs timeout = job.settings.join_timeout;
  if (timeout != 0 && now - job.created_at >= timeout) return EndInVain(job);
  job.arrivals.noticed_at = now;
  job.arrivals.hints = HintsFor(job);
  Notify(job, now);
}

void Arrivals::Notify(Job& job, TimeNs now) {
  const std::vector<std::uint32_t> missing = MissingRanks(job);
  context_.log.Info(
      "event=ranks_missing tenant={} job=\"{}\" missing=\"{}\" ranks={} waiting_s={:.0f} "
      "hints=\"{}\"",
      job.account.tenant, job.name(), ListedNumbers(missing, kRanksNamed), job.settings.world_size,
      static_cast<double>(now - job.created_at) / kSecond,
      Escaped(fmt::format("{}", fmt::join(job.arrivals.hints, "; "))));
  v1::SessionEvent event;
  v1::RanksMissing& notice = *event.mutable_missing();
  for (const std::uint32_t rank : missing) notice.add_ranks(rank);
  notice.set_waiting_ns(now - job.created_at);
  for (const std::string& hint : job.arrivals.hints) notice.add_hints(hint);
  if (!listener_.OnMissing(job, notice)) SendAll(job, event);
}

std::vector<std::string> Arrivals::HintsFor(const Job& job) const {
  std::vector<std::string> hints;
  const std::optional<RefusedProcess>& refused = job.arrivals.refused;
  if (refused &&
      job.members[refused->rank - job.config.rank_base].state == Member::State::kAwaited) {
    hints.push_back(fmt::format("rank {} ({}) was refused: {}", refused->rank, refused->host,
                                Printable(refused->why, kHintBytesMax)));
  }
  const std::optional<RefusedProcess>& twin = job.arrivals.twin;
  const auto is_twin = [&](const Member& each) {
    return each.host == twin->host && each.pid == twin->pid;
  };
  if (twin && std::ranges::none_of(job.members, is_twin)) {  // else it has joined since
    hints.push_back(
        fmt::format("a second process ({}, pid {}) wanted to be rank {} and was refused; it was "
                    "probably meant to be a missing rank",
                    twin->host, twin->pid, twin->rank));
  }
  if (std::string similar = SimilarJob(job); !similar.empty()) hints.push_back(std::move(similar));
  const std::uint32_t racks = context_.options.racks_with_ranks();
  if (racks > 1 && job.rack_run == nullptr) {
    hints.push_back(fmt::format(
        "this daemon is one of {} racks, but the job has no plan, so all its ranks must "
        "join this rack; a job whose ranks set plan=auto spans the racks",
        racks));
  }
  return hints;
}

std::string Arrivals::SimilarJob(const Job& job) const {
  std::size_t compared = 0;
  std::size_t members = 0;
  for (const auto& other : jobs_.jobs()) {
    if (other.get() == &job || !other->running() || other->account.tenant != job.account.tenant ||
        other->members.size() != job.members.size() ||
        other->config.ranks_of_job != job.config.ranks_of_job) {
      continue;
    }
    if (compared++ == kNamesCompared) break;
    if (!AreSimilar(job.name(), other->name())) continue;
    members += other->members.size();
    if (members > kMembersLookedAt) break;
    const std::vector<std::uint32_t> ranks = RanksThatComplete(job, *other);
    if (ranks.empty()) continue;
    return fmt::format(
        "job {} of the same tenant also waits, and has {} {}, missing here; one of the two names "
        "is probably mistyped",
        other->name(), RankOrRanks(ranks), ListedNumbers(ranks, kRanksNamed));
  }
  return {};
}

void Arrivals::NoteRefusal(Job& job, const v1::JoinRequest& request, const absl::Status& why) {
  PHUB_ON_CONTROL();
  const std::uint32_t rank = request.rank() - job.config.rank_base;  // may wrap around
  if (!Concerns(job) || rank >= job.members.size()) return;
  RefusedProcess process{request.rank(), Printable(request.host(), kNameBytesMax), request.pid(),
                         Printable(std::string(why.message()), kRefusalBytesMax)};
  if (job.members[rank].state != Member::State::kAwaited) {
    if (absl::IsAlreadyExists(why)) job.arrivals.twin = std::move(process);
    return;
  }
  v1::SessionEvent event;
  v1::RankRefused& refused = *event.mutable_refused();
  refused.set_rank(request.rank());
  // The request may be refused for its host. Every rank of the job gets the event, and may not read
  // it, so its size is limited.
  refused.set_host(process.host);
  refused.set_message(process.why);
  job.arrivals.refused = std::move(process);
  SendAll(job, event);
  listener_.OnRefused(job, refused);
}

void Arrivals::EndInVain(Job& job) {
  const std::vector<std::uint32_t> missing = MissingRanks(job);
  std::string what = fmt::format(
      "{} {} of {} did not join within join_timeout ({}); see why they did not start, "
      "or raise join_timeout",
      RankOrRanks(missing), ListedNumbers(missing, kRanksNamed),
      job.settings.ranks_of_job == 0 ? job.settings.world_size : job.settings.ranks_of_job,
      FormatAge(job.settings.join_timeout));
  for (const std::string& hint : HintsFor(job)) what += "; " + hint;
  v1::Fault fault = ending_.MakeFault(job, "join_timeout", what);
  context_.counters.Add(ControlCounter::joins_awaited_in_vain);
  ending_.Fail(job, std::move(fault));
}

}  // namespace phub::server
