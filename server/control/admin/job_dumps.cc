#include "server/control/admin/job_dumps.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/printable.h"
#include "server/control/admin/stall_reports.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_run.h"
#include "server/control/ranks/barriers.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kHeadlineBytesMax = 512;
constexpr std::size_t kNoteBytesMax = 512;
constexpr std::size_t kUnitBytes = 4096;  // of records: one unit of a turn's work

std::size_t RankBytesMax(const Job& job) {
  const std::size_t share = JobDumps::kBytesMax / std::max<std::size_t>(job.members.size(), 1);
  return std::clamp(share, JobDumps::kRankBytesMin, JobDumps::kRankBytesMax);
}

// What the program has recorded comes after rounds and calls.
void TakeProgramsPart(const v1::RankRecord& from, v1::RankRecord& record) {
  record.set_headline(Printable(from.headline(), kHeadlineBytesMax));
  record.set_text(PrintableLines(from.text()));
  record.set_json(PrintableLines(from.json()));
  if (from.note().empty()) return;
  record.set_note(fmt::format("{}{}{}", record.note(), record.note().empty() ? "" : "; ",
                              Printable(from.note(), kNoteBytesMax)));
}

v1::RankRecord Cleaned(const v1::RankRecord& given) {
  v1::RankRecord record;
  for (const v1::OpenRound& each : given.rounds()) {
    v1::OpenRound& round = *record.add_rounds();
    round.set_key(Printable(each.key(), kNameBytesMax));
    round.set_iteration(each.iteration());
    round.set_operation(Printable(each.operation(), kNameBytesMax));
    round.set_waiting_ns(std::max<DurationNs>(0, each.waiting_ns()));
  }
  record.set_round_count(
      std::max(given.round_count(), static_cast<std::uint32_t>(given.rounds_size())));
  for (const v1::OpenCall& each : given.calls()) {
    v1::OpenCall& call = *record.add_calls();
    call.set_name(Printable(each.name(), kNameBytesMax));
    call.set_waiting_ns(std::max<DurationNs>(0, each.waiting_ns()));
  }
  TakeProgramsPart(given, record);
  return record;
}

// Why a rank that was not asked, or has not answered, has no record.
std::string DescribeSilence(const Member& member, bool asked, DurationNs waited) {
  switch (member.state) {
    case Member::State::kAwaited: return "has not joined";
    case Member::State::kReserved: return "is joining";
    case Member::State::kLeft: return "has left the job";
    case Member::State::kDead: return "is dead";
    case Member::State::kLost: return fmt::format("is lost: {}", member.absence);
    case Member::State::kLive: break;
  }
  return asked ? fmt::format("did not answer within {}", FormatAge(waited))
               : "joined after the dump had begun";
}

}  // namespace

bool JobDumps::Dump::complete() const {
  return begun && has_stalls && std::ranges::none_of(ranks, [](const RankState& rank) {
           return rank.problem.empty() && rank.asked && (!rank.answered || rank.awaits_more);
         });
}

absl::Status JobDumps::CheckRoom(const Job& job) const {
  std::size_t all = 0;
  std::size_t of_tenant = 0;
  for (const auto& [number, dump] : dumps_) {
    if (dump.callers.empty()) continue;
    ++all;
    if (dump.job->account.tenant == job.account.tenant) ++of_tenant;
  }
  if (of_tenant >= kPerTenantMax) {
    return absl::ResourceExhaustedError(
        fmt::format("{} jobs of tenant {} are being dumped, which is the limit; try again later",
                    of_tenant, job.account.tenant));
  }
  if (all >= kAtOnceMax) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} jobs are being dumped, which is this daemon's limit; try again later", all));
  }
  return absl::OkStatus();
}

absl::StatusOr<JobDumps::Dump*> JobDumps::DumpOfCall(Job& job, DurationNs wait) {
  const auto present = dumps_.find(job.number);
  if (present != dumps_.end() && !present->second.callers.empty()) {
    if (present->second.callers.size() < kCallersMax) return &present->second;
    return absl::ResourceExhaustedError(
        fmt::format("{} clients already wait for the dump of job {}; try again later",
                    present->second.callers.size(), job.name()));
  }
  if (absl::Status room = CheckRoom(job); !room.ok()) return room;
  const TimeNs now = context_.clock.Now();
  Dump dump;
  dump.job = &job;
  dump.begins_at = present == dumps_.end() ? now : present->second.ended_at + kPause;
  dump.wait = wait <= 0 ? kWaitDefault : std::min(wait, kWaitMax);
  Dump& place = dumps_[job.number];
  place = std::move(dump);
  return &place;
}

void JobDumps::DumpJob(const v1::DumpJobRequest& request, Answer<v1::JobDump> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Job*> job = jobs_.FindJobToWorkOn(request.tenant(), request.job());
  const absl::StatusOr<Dump*> dump =
      job.ok() ? DumpOfCall(**job, request.wait_ns()) : absl::StatusOr<Dump*>(job.status());
  if (!dump.ok()) {
    context_.counters.Add(ControlCounter::dumps_refused);
    return answer(dump.status(), {});
  }
  (*dump)->callers.push_back(std::move(answer));
  CheckDump(**dump, context_.clock.Now());
}

void JobDumps::Begin(Dump& dump) {
  context_.counters.Add(ControlCounter::dumps);
  dump.begun = true;
  dump.number = ++begun_;
  dump.deadline = context_.clock.Now() + dump.wait;
  const Job& job = *dump.job;
  dump.ranks.resize(job.members.size());
  v1::SessionEvent question;
  question.mutable_dump()->set_number(dump.number);
  question.mutable_dump()->set_bytes_max(static_cast<std::uint32_t>(RankBytesMax(job)));
  for (std::size_t rank = 0; rank < job.members.size(); ++rank) AskRank(dump, rank, question);
  AskForStalls(dump);
}

void JobDumps::AskRank(Dump& dump, std::size_t rank, const v1::SessionEvent& question) {
  const Member& member = dump.job->members[rank];
  RankState& state = dump.ranks[rank];
  if (!member.present()) return;
  if (!member.answers_dumps) {
    state.problem = "cannot answer: its version of phub is older than dumps";
  } else if (!member.sink) {
    state.problem = "cannot be asked: its event stream is not open";
  } else {
    state.asked = true;
    member.sink->Send(question);
  }
}

void JobDumps::AskForStalls(Dump& dump) {
  v1::ListStallsRequest request;
  request.set_tenant(dump.job->account.tenant);
  request.set_job(dump.job->name());
  stall_reports_.ListStalls(request,
                            [this, of = dump.job->number, number = dump.number](
                                const absl::Status& status, const v1::ListStallsResponse& stalls) {
                              const auto asking = dumps_.find(of);
                              if (asking == dumps_.end() || asking->second.number != number) return;
                              asking->second.has_stalls = true;
                              asking->second.stalls = stalls;
                              if (!status.ok())
                                asking->second.stalls_problem = std::string(status.message());
                            });
}

absl::Status JobDumps::Take(RankState& rank, const v1::ReportDumpRequest& report,
                            std::size_t bytes_max) {
  if (!rank.asked || !rank.problem.empty() || (rank.answered && !rank.awaits_more)) {
    return absl::FailedPreconditionError("this rank has answered, or was not asked");
  }
  const std::size_t bytes = rank.record.ByteSizeLong() + report.record().ByteSizeLong();
  if (bytes > bytes_max) {
    rank.record.Clear();
    rank.answered = false;
    rank.problem =
        fmt::format("sent a record of {} bytes, more than the limit of {}", bytes, bytes_max);
    return absl::InvalidArgumentError(
        fmt::format("the record has {} bytes, more than the limit of {}", bytes, bytes_max));
  }
  if (rank.answered) {
    TakeProgramsPart(report.record(), rank.record);
  } else {
    rank.record = Cleaned(report.record());
  }
  rank.awaits_more = !rank.answered && report.more();
  rank.answered = true;
  return absl::OkStatus();
}

void JobDumps::ReportDump(const v1::ReportDumpRequest& request,
                          Answer<v1::ReportDumpResponse> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Seating> seat = sessions_.FindCommitted(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  const auto asking = dumps_.find(seat->job->number);
  const bool is_asked = asking != dumps_.end() && !asking->second.callers.empty() &&
                        asking->second.begun && asking->second.number == request.number();
  absl::Status taken = absl::FailedPreconditionError(
      fmt::format("dump {} of job {} is over or never began", request.number(), seat->job->name()));
  if (is_asked && !asking->second.finishing) {
    const std::size_t bytes = request.record().ByteSizeLong();
    context_.turns.Add(1 + bytes / kUnitBytes);
    asking->second.record_bytes += bytes;
    taken = Take(asking->second.ranks[seat->rank.value], request, RankBytesMax(*seat->job));
  }
  if (!taken.ok()) context_.counters.Add(ControlCounter::dump_records_refused);
  answer(taken, {});
  if (is_asked) CheckDump(asking->second, context_.clock.Now());
}

void JobDumps::CheckDump(Dump& dump, TimeNs now) {
  if (dump.callers.empty() || dump.finishing) return;
  if (!dump.begun && now >= dump.begins_at) Begin(dump);
  if (dump.complete() || (dump.begun && now >= dump.deadline)) Finish(dump);
}

void JobDumps::Finish(Dump& dump) {
  dump.finishing = true;
  dump.result = DescribeJob(dump);
  // The turn may have finished other dumps.
  if (context_.turns.has_later() && context_.turns.units() > 0) return DescribeMoreLater(dump);
  DescribeMore(dump);
}

void JobDumps::DescribeMoreLater(const Dump& dump) {
  context_.turns.RunLater(dump.job->account.tenant,
                          [this, of = dump.job->number, number = dump.number] {
                            const auto found = dumps_.find(of);
                            if (found != dumps_.end() && found->second.number == number)
                              DescribeMore(found->second);
                          });
}

void JobDumps::DescribeMore(Dump& dump) {
  const auto begin = static_cast<std::size_t>(dump.result.ranks_size());
  std::size_t end = dump.ranks.size();
  if (context_.turns.has_later()) end = std::min(end, begin + context_.options.turn.ranks);
  for (std::size_t rank = begin; rank < end; ++rank) DescribeRank(dump, rank);
  context_.turns.Add(end - begin);
  if (end < dump.ranks.size()) return DescribeMoreLater(dump);
  Deliver(dump);
}

// Copies for several callers are made without the lock.
void JobDumps::Deliver(Dump& dump) {
  std::vector<Answer<v1::JobDump>> callers = std::exchange(dump.callers, {});
  dump.finishing = false;
  dump.ended_at = context_.clock.Now();
  dump.ranks.clear();
  const auto result = std::make_shared<v1::JobDump>(std::move(dump.result));
  dump.result.Clear();
  if (callers.size() == 1) return callers[0](absl::OkStatus(), std::move(*result));
  for (const Answer<v1::JobDump>& answer : callers) {
    const auto copy = std::make_shared<v1::JobDump>();
    context_.turns.RunLong(
        dump.record_bytes / kUnitBytes + static_cast<std::size_t>(result->ranks_size()),
        dump.job->account.tenant, [copy, result] { *copy = *result; },
        [copy, answer] { answer(absl::OkStatus(), std::move(*copy)); });
  }
}

v1::JobDump JobDumps::DescribeJob(Dump& dump) const {
  const Job& job = *dump.job;
  v1::JobDump result;
  result.set_tenant(job.account.tenant);
  result.set_job(job.name());
  result.set_incarnation(FormatIncarnation(job.account.incarnation));
  result.set_world_size(std::max(job.settings.world_size, job.settings.ranks_of_job));
  if (job.rack_run != nullptr) {
    result.set_rack(context_.options.rack_index);
    for (std::uint32_t rack = 0; rack < context_.options.racks_with_ranks(); ++rack) {
      result.add_racks(context_.options.racks[rack]);
    }
  }
  result.mutable_stalls()->Swap(dump.stalls.mutable_stalls());
  result.mutable_lost_elsewhere()->Swap(dump.stalls.mutable_lost_elsewhere());
  if (!dump.has_stalls) {
    result.set_stalls_problem("the core loops did not report in time");
  } else {
    result.set_stalls_problem(dump.stalls_problem);
  }
  if (auto barrier = Barriers::Describe(job, context_.clock.Now()))
    result.mutable_barrier()->Swap(&*barrier);
  return result;
}

// Takes the rank's record out of the dump.
void JobDumps::DescribeRank(Dump& dump, std::size_t rank) const {
  RankState& state = dump.ranks[rank];
  const Job& job = *dump.job;
  const Member& member = job.members[rank];
  v1::RankDump& described = *dump.result.add_ranks();
  described.set_rank(static_cast<std::uint32_t>(rank) + job.config.rank_base);
  described.set_host(member.host);
  described.set_pid(member.pid);
  described.set_state(ToString(member.state));
  if (member.last_heard != 0)
    described.set_last_heartbeat_age_ns(context_.clock.Now() - member.last_heard);
  described.set_answered(state.answered);
  if (state.answered) described.mutable_record()->Swap(&state.record);
  if (!state.problem.empty()) {
    described.set_problem(state.problem);
  } else if (!state.answered) {
    described.set_problem(DescribeSilence(member, state.asked, dump.wait));
  } else if (state.awaits_more) {
    described.set_problem(
        fmt::format("the program's recorder did not answer within {}", FormatAge(dump.wait)));
  }
}

void JobDumps::Check(TimeNs now) {
  PHUB_ON_CONTROL();
  for (auto next = dumps_.begin(); next != dumps_.end();) {
    Dump& dump = next->second;
    CheckDump(dump, now);
    const bool is_past = dump.callers.empty() && !dump.finishing && now >= dump.ended_at + kPause;
    next = is_past ? dumps_.erase(next) : std::next(next);
  }
}

TimeNs JobDumps::NextTimer() const {
  PHUB_ON_CONTROL();
  TimeNs next = kNever;
  for (const auto& [number, dump] : dumps_) {
    const TimeNs at = dump.callers.empty() ? dump.ended_at + kPause
                      : dump.finishing     ? kNever
                      : dump.begun         ? dump.deadline
                                           : dump.begins_at;
    next = std::min(next, at);
  }
  return next;
}

void JobDumps::OnOver(Job& job, const absl::Status& why) {
  PHUB_ON_CONTROL();
  const auto found = dumps_.find(job.number);
  if (found == dumps_.end()) return;
  const std::vector<Answer<v1::JobDump>> callers = std::exchange(found->second.callers, {});
  dumps_.erase(found);
  for (const Answer<v1::JobDump>& answer : callers) {
    answer(absl::FailedPreconditionError(fmt::format("job {} ended while it was being dumped: {}",
                                                     job.name(), std::string(why.message()))),
           {});
  }
}

}  // namespace phub::server
