#include "server/control/racks/rack_conflicts.h"

#include <fmt/format.h>

#include <utility>

#include "server/control/jobs/conflict_text.h"
#include "server/control/jobs/ending.h"
#include "server/control/jobs/hyper_parameters.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_run.h"
#include "server/core/exchange/shard_exchange.h"

namespace phub::server {
namespace {

// Rounds of different kinds are described without values.
bool LacksValues(const ConflictSide& side, const ConflictSide& other) {
  return side.is_known && !side.has_values && side.operation == wire::RoundOperation::kReduce &&
         other.operation == side.operation;
}

bool IsComplete(const Conflict& sides) {
  return !LacksValues(sides.source, sides.other) && !LacksValues(sides.other, sides.source);
}

}  // namespace

void RackConflicts::HandleMismatch(Job& job, const Event& event) {
  PHUB_ON_CONTROL();
  RackRun& run = *job.rack_run;
  if (!job.running() || run.conflict) return;
  RackConflict conflict{.source = event.source.rack(),
                        .other = event.other.rack(),
                        .key = event.key,
                        .iteration = event.iteration,
                        .sides = event.shard->conflict,
                        .due = context_.clock.Now() + kAnswerTimeout};
  const Conflict& sides = conflict.sides;
  if (IsComplete(sides) || event.key.value >= job.keys.size()) return Fail(job, conflict);
  for (const ConflictSide* const side : {&sides.source, &sides.other}) {
    if (!side->is_known || side->has_values) continue;
    v1::PeerMessage message;
    message.mutable_hyper_parameters_asked()->set_key(event.key.value);
    message.mutable_hyper_parameters_asked()->set_version(side->version.value);
    messages_.SendToRacks(job, message);
  }
  run.conflict = std::move(conflict);
}

void RackConflicts::HandleQuestion(Job& job, RackIndex from,
                                   const v1::PeerHyperParametersAsked& asked) {
  PHUB_ON_CONTROL();
  // Two from each rack, and one of this daemon's own.
  if (job.queries.size() > 2 * job.rack_run->racks.size()) return;
  const StallReport::Record record{KeyIndex{asked.key()}, HyperVersion{asked.version()}};
  stall_queries_.AskForStalls(
      job, context_.options.report_timeout,
      [this, &job, from, record](StallQuery& answered) {
        if (!job.running()) return;
        for (const auto& report : answered.reports) {
          if (!report->values) continue;
          v1::PeerMessage message;
          v1::PeerHyperParameters& answer = *message.mutable_hyper_parameters();
          answer.set_key(record.key.value);
          answer.set_version(record.version.value);
          *answer.mutable_values() = ToProto(*report->values);
          return messages_.SendToRack(from, job.account.incarnation, message);
        }
      },
      {}, record);
}

void RackConflicts::HandleAnswer(Job& job, const v1::PeerHyperParameters& answer) {
  PHUB_ON_CONTROL();
  std::optional<RackConflict>& conflict = job.rack_run->conflict;
  if (!conflict || conflict->key.value != answer.key()) return;
  const wire::HyperParameters values = optimizer::FromMessage(answer.values());
  const std::uint64_t hash = exchange::HashOf(values);
  for (ConflictSide* const side : {&conflict->sides.source, &conflict->sides.other}) {
    if (side->has_values || side->version.value != answer.version() || side->values_hash != hash) {
      continue;
    }
    side->has_values = true;
    side->values = values;
  }
  if (IsComplete(conflict->sides)) Fail(job, *conflict);
}

void RackConflicts::Check(Job& job, TimeNs now) {
  if (now >= NextTimer(job)) Fail(job, *job.rack_run->conflict);
}

TimeNs RackConflicts::NextTimer(const Job& job) {
  if (!job.running() || job.rack_run == nullptr || !job.rack_run->conflict) return kNever;
  return job.rack_run->conflict->due;
}

// An aggregator has no ranks of its own.
std::string RackConflicts::DescribeRanksOf(const Job& job, RackIndex rack) const {
  const std::string name = context_.options.DescribeRack(rack);
  if (rack.value >= context_.options.racks_with_ranks()) return "ranks behind " + name;
  const std::uint32_t count = job.config.ranks_per_rack;
  const std::uint32_t first = rack.value * count;
  if (count == 1) return fmt::format("rank {} in {}", first, name);
  return fmt::format("ranks {} to {} in {}", first, first + count - 1, name);
}

void RackConflicts::Fail(Job& job, const RackConflict& conflict) {
  std::string what =
      DescribeConflict(FaultCode::kRoundMismatch, conflict.sides,
                       DescribeRanksOf(job, conflict.source), DescribeRanksOf(job, conflict.other));
  if (HasKey(job, conflict.key)) {
    what += fmt::format("; key {} iteration {}", DescribeKey(job, conflict.key),
                        conflict.iteration.value);
  }
  v1::Fault fault = ending_.MakeFault(job, ToString(FaultCode::kRoundMismatch), what);
  job.rack_run->conflict.reset();
  context_.counters.Add(ControlCounter::peer_faults);
  ending_.Fail(job, std::move(fault));
}

}  // namespace phub::server
