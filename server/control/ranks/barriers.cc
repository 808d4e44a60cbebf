#include "server/control/ranks/barriers.h"

#include <algorithm>
#include <utility>

#include "server/control/on_control.h"

namespace phub::server {
namespace {

constexpr std::uint64_t kBarriersAtOnceMax = 64;

}  // namespace

void Barriers::Barrier(const v1::BarrierRequest& request, Answer<v1::BarrierResponse> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Seating> seat = sessions_.FindCommitted(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Job& job = *seat->job;
  if (absl::Status status = local_rack_.CheckAnchor(job); !status.ok()) return answer(status, {});
  Member& member = job.members[seat->rank.value];
  const std::uint64_t sequence = request.sequence();
  if (sequence < job.barriers_done) return answer(absl::OkStatus(), {});  // a retry
  // Threads of one worker may wait in several barriers at once, and their calls may be reordered.
  if (sequence - job.barriers_done >= kBarriersAtOnceMax) {
    context_.counters.Add(ControlCounter::barriers_refused);
    return answer(
        absl::InvalidArgumentError(fmt::format(
            "{} of job {} called barrier {} too early; the next barrier to complete is {}",
            DescribeRankBriefly(job, seat->rank), job.name(), sequence, job.barriers_done)),
        {});
  }
  const auto [place, is_new] = member.barriers.try_emplace(sequence);
  PendingBarrier& pending = place->second;
  if (is_new) {
    pending.since = context_.clock.Now();
  } else {  // the worker reconnected or was restarted, and calls again
    pending.answer(absl::CancelledError(
                       fmt::format("{} of job {} called barrier {} again, which canceled this call",
                                   DescribeRankBriefly(job, seat->rank), job.name(), sequence)),
                   {});
  }
  pending.answer = std::move(answer);
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    if (job.members[rank].state != Member::State::kLeft) continue;
    RefuseBarriersWithout(job, DescribeRank(job, Rank{rank}));
  }
  for (const std::string& departed : peer_racks_.DepartedRanks(job)) {
    RefuseBarriersWithout(job, departed);
  }
  CompleteBarriers(job);
}

void Barriers::CompleteBarriers(Job& job) {
  PHUB_ON_CONTROL();
  if (job.members.empty()) return;  // an aggregator has no ranks
  const auto waits = [&](const Member& member) {
    return member.barriers.contains(job.barriers_done);
  };
  while (std::all_of(job.members.begin(), job.members.end(), waits) &&
         peer_racks_.ReachedBarrier(job)) {
    context_.counters.Add(ControlCounter::barriers);
    const std::uint64_t sequence = job.barriers_done++;
    for (Member& member : job.members) {
      member.barriers.extract(sequence).mapped().answer(absl::OkStatus(), {});
    }
  }
}

void Barriers::RefuseBarriersWithout(Job& job, const std::string& departed) {
  PHUB_ON_CONTROL();
  for (Member& member : job.members) {
    for (const auto& [sequence, pending] : std::exchange(member.barriers, {})) {
      context_.counters.Add(ControlCounter::barriers_refused);
      pending.answer(
          absl::FailedPreconditionError(fmt::format(
              "barrier {} of job {} cannot complete: {} has left", sequence, job.name(), departed)),
          {});
    }
  }
}

std::optional<v1::StalledBarrier> Barriers::Describe(const Job& job, TimeNs now) {
  PHUB_ON_CONTROL();
  v1::StalledBarrier described;
  described.set_number(job.barriers_done);
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    const std::uint32_t in_job = rank + job.config.rank_base;
    const auto& pending = job.members[rank].barriers;
    const auto place = pending.find(job.barriers_done);
    if (place == pending.end()) {
      described.add_missing(in_job);
      continue;
    }
    described.add_waiting(in_job);
    described.set_since_ns(std::max(described.since_ns(), now - place->second.since));
  }
  if (described.waiting().empty()) return std::nullopt;
  return described;
}

}  // namespace phub::server
