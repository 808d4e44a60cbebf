#include "server/control/admin/job_descriptions.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "server/control/checkpoint/checkpoints.h"
#include "server/control/jobs/group_text.h"
#include "server/control/jobs/job_options.h"
#include "server/control/jobs/sum_options.h"
#include "server/control/lanes/sum_streams.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_run.h"
#include "server/control/racks/rack_waiting.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

// A rank with few lanes is one unit of work.
constexpr std::size_t kLanesPerUnit = 8;
constexpr std::size_t kBatchesPerUnit = 64;
constexpr int kGroupsDescribedMax = 256;  // as JobInfo documents

void DescribeProgress(const Job& job, TimeNs now, v1::JobInfo& info) {
  const RoundProgress* const progress = ProgressOf(job);
  if (progress == nullptr) return;
  info.set_iteration(progress->iteration.Get());
  info.set_iteration_ns(static_cast<std::int64_t>(progress->iteration_ns.Get()));
  const auto at = static_cast<TimeNs>(progress->iteration_at.Get());
  if (at != 0) info.set_iteration_age_ns(std::max<DurationNs>(1, now - at));
}

bool IsAwaited(const Job& job) {
  return job.running() && std::ranges::any_of(job.members, [](const Member& member) {
           return member.state == Member::State::kAwaited;
         });
}

}  // namespace

bool JobDescriptions::DescribeMore(const Job& job, JobDescription& description) {
  PHUB_ON_CONTROL();
  bool begun = false;  // work was done in this turn
  if (!description.begun) {
    begun = description.begun = true;
    description.info = DescribeRun(job);
    context_.turns.Add(1);
  }
  const bool in_turns = context_.turns.has_later();
  const TimeNs now = context_.clock.Now();
  const auto is_over = [&] {
    return in_turns && begun && context_.turns.units() >= context_.options.turn.ranks;
  };
  for (std::uint32_t rank = static_cast<std::uint32_t>(description.info.workers_size());
       rank < job.members.size(); ++rank) {
    if (is_over()) return false;
    *description.info.add_workers() = DescribeRank(job, rank, now);
    context_.turns.Add(1 + job.members[rank].lanes.size() / kLanesPerUnit);
    begun = true;
  }
  for (const std::shared_ptr<Group>& group : job.groups) {
    if (group->id <= description.last_group) continue;
    if (is_over()) return false;
    description.last_group = group->id;
    if (description.info.groups_size() == kGroupsDescribedMax) {
      description.info.set_groups_omitted(description.info.groups_omitted() + 1);
      continue;
    }
    DescribeGroup(*group, *description.info.add_groups());
    context_.turns.Add(1 + group->batches.size() / kBatchesPerUnit);
    begun = true;
  }
  while (const auto lost = FirstLostFrom(job, description.lost_next)) {
    if (is_over()) return false;
    DescribeLost(*lost, now, *description.info.add_lost_elsewhere());
    description.lost_next = lost->rank + 1;
    context_.turns.Add(1);
    begun = true;
  }
  return true;
}

void JobDescriptions::Describe(const Job& job, Done done) {
  Continue(job, std::make_shared<JobDescription>(), std::move(done));
}

void JobDescriptions::Continue(const Job& job, const std::shared_ptr<JobDescription>& description,
                               Done done) {
  if (DescribeMore(job, *description)) return done(true, std::move(description->info));
  const auto more = [this, description, done = std::move(done),
                     incarnation = job.account.incarnation] {
    const Job* const found = jobs_.FindRun(incarnation);
    if (found == nullptr) return done(false, std::move(description->info));
    Continue(*found, description, done);
  };
  context_.turns.RunLater(job.account.tenant, more);
}

v1::JobInfo JobDescriptions::DescribeRun(const Job& job) const {
  const TimeNs now = context_.clock.Now();
  v1::JobInfo info;
  info.set_tenant(job.account.tenant);
  info.set_name(job.name());
  info.set_incarnation(FormatIncarnation(job.account.incarnation));
  info.set_state(ToString(job.state));
  info.set_world_size(std::max(job.settings.world_size, job.settings.ranks_of_job));
  if (job.rack_run != nullptr) plans_.DescribeExchange(job, *info.mutable_exchange());
  info.set_key_count(static_cast<std::uint32_t>(job.key_count));
  info.set_parameter_bytes(job.parameter_bytes);
  info.set_memory_bytes(job.released() && job.let_go.empty() ? 0 : job.memory_bytes);
  info.set_chunk_bytes(job.config.chunk_bytes);
  info.set_slots_per_lane(job.config.slots_per_lane);
  info.set_on_loss(ToString(job.settings.on_loss));
  info.set_age_ns(now - job.created_at);
  info.set_fault(job.fault.message());
  info.set_restart(job.settings.restart);
  info.set_wait_timeout_ns(job.settings.wait_timeout);
  info.set_screening(ToString(job.settings.screening));
  info.set_apply(ApplyName(job.settings));
  info.set_clip_norm(job.settings.clip_norm);
  info.set_skip_nonfinite(job.settings.skip_nonfinite);
  info.set_sum(SumName(job.settings));
  info.set_sum_block(job.settings.sum_block);
  for (std::string& way : SumStreams::WaysOf(job)) info.add_sum_ways(std::move(way));
  DescribeProgress(job, now, info);
  const WorkTotals totals = job.released() ? job.totals : totals_.TotalsOf(job);
  info.set_nonfinite_sums(totals.nonfinite_sums);
  info.set_nonfinite_gradients(totals.nonfinite_gradients);
  info.set_nonfinite_first(job.nonfinite_first);
  if (const auto saved = DescribeNewestSave(job, now)) *info.mutable_saved_state() = *saved;
  if (context_.ledger.RequiresEncryption(job.account.tenant)) info.set_encryption("required");
  if (IsAwaited(job)) {
    for (const std::string& hint : job.arrivals.hints) info.add_waiting_hints(hint);
  }
  return info;
}

void JobDescriptions::DescribeGroup(const Group& group, v1::GroupInfo& info) {
  constexpr std::array<const char*, kPriorityLevels> kClasses{"data", "pipeline", "tensor"};
  info.set_name(group.name);
  info.set_id(group.id);
  info.set_rank_count(static_cast<std::uint32_t>(group.ranks.size()));
  info.set_ranks(DescribeRanks(group.ranks));
  std::array<bool, kPriorityLevels> has_level{};
  std::size_t keys = 0;
  for (const std::shared_ptr<BatchRecord>& batch : group.batches) {
    if (batch->held) continue;
    keys += batch->keys->size();
    for (std::size_t level = 0; level < kPriorityLevels; ++level)
      has_level[level] |= batch->has_level[level];
  }
  for (std::size_t level = kPriorityLevels; level-- > 0;)
    if (has_level[level]) info.add_priority_classes(kClasses[level]);
  info.set_key_count(static_cast<std::uint32_t>(keys));
  info.set_removing(group.removal != nullptr);
  const WorkTotals totals = Metrics::TotalsOfGroup(group);
  info.set_gradient_bytes(totals.gradient_bytes);
  info.set_reply_bytes(totals.reply_bytes);
  info.set_rounds(totals.rounds());
  info.set_round_ns(totals.round_duration_ns);
  info.set_straggler_wait_ns(totals.straggler_wait_ns);
}

v1::WorkerInfo JobDescriptions::DescribeRank(const Job& job, std::uint32_t rank, TimeNs now) const {
  const Member& member = job.members[rank];
  v1::WorkerInfo worker;
  worker.set_rank(rank + job.config.rank_base);
  worker.set_host(member.host);
  worker.set_pid(member.pid);
  worker.set_state(ToString(member.state));
  worker.set_address(member.address);
  if (member.last_heard != 0) worker.set_last_heartbeat_age_ns(now - member.last_heard);
  worker.set_restarts(member.restarts);
  const RankMetricsSum sum = metrics_.SumOfRank(job, Rank{rank});
  worker.set_rounds_last(sum.rounds_last);
  worker.set_straggler_wait_ns(sum.straggler_wait_ns);
  if (member.state == Member::State::kLost) {
    worker.set_awaited_for_ns(std::max<DurationNs>(0, member.awaited_until - now));
    worker.set_loss(member.absence);
  }
  worker.set_lanes_open(static_cast<std::uint32_t>(
      std::count_if(member.lanes.begin(), member.lanes.end(),
                    [](const LanePlace& place) { return place.connection != nullptr; })));
  for (std::size_t core = 0; core < member.lanes.size(); ++core) {
    v1::LaneInfo& lane = *worker.add_lanes();
    lane.set_core(CoreAt(core).value);
    lane.set_lane(stall_reports_.DescribeLane(member, CoreAt(core)));
    if (member.lanes[core].connection != nullptr) lane.set_reason(ReasonOf(job, lane.lane()));
  }
  return worker;
}

// Why a lane over this transport is as secure as its tenant requires.
std::string JobDescriptions::ReasonOf(const Job& job, std::string_view lane) const {
  const LaneTransports& transports = context_.options.lane_transports;
  const LaneTransport* const transport = FindTransportOf(transports, lane);
  if (transport == nullptr) return {};
  const bool first = transport == &transports.front();
  const bool required = context_.ledger.RequiresEncryption(job.account.tenant);
  return transport->privacy +
         (first && required ? "; RDMA is not used because the tenant requires encryption" : "");
}

}  // namespace phub::server
