#include "server/core/loop/outbox.h"

#include "common/base/check.h"
#include "server/core/on_core_loop.h"

namespace phub::server {

Outbox::Outbox(SpscQueue<Event>& events, CoreCounters& counters, std::size_t capacity)
    : events_(events), counters_(counters), capacity_(capacity) {
  waiting_.reserve(capacity);
}

void Outbox::Emit(const Event& event) {
  PHUB_ON_CORE_LOOP();
  PHUB_DCHECK(event.kind != Event::Kind::kNone && event.shard != nullptr);
  if (waiting_.empty() && events_.TryPush(event)) return;
  counters_.Add(CoreCounter::events_delayed);
  if (waiting_.size() == capacity_) {
    PHUB_CHECK(first_ > 0, "waiting={}", waiting_.size());
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
  waiting_.push_back(event);
}

void Outbox::Flush() {
  while (first_ < waiting_.size() && events_.TryPush(waiting_[first_])) ++first_;
  if (first_ < waiting_.size()) return;
  waiting_.clear();
  first_ = 0;
}

void Outbox::Fault(Event event) {
  if (event.shard->faulted) return;
  event.shard->faulted = true;
  event.kind = Event::Kind::kFault;
  counters_.Add(CoreCounter::faults);
  Emit(event);
}

void Outbox::ReportNonFinite(JobShard& shard) {
  NonFinite& first = shard.non_finite;
  if (!first.seen || first.told) return;
  first.told = true;
  Event event = {.kind = Event::Kind::kNonFinite,
                 .code = FaultCode::kNonFinite,
                 .source = first.rank == Rank::Max() ? LaneOwner() : LaneOwner(first.rank),
                 .key = first.key,
                 .iteration = first.iteration,
                 .shard = &shard};
  if (shard.config.screening == Screening::kReject) return Fault(event);
  Emit(event);
}

void Outbox::CountRefusal(FaultCode code) {
  switch (code) {
    case FaultCode::kWrongIncarnation: return counters_.Add(CoreCounter::refused_incarnation);
    case FaultCode::kWrongEpoch: return counters_.Add(CoreCounter::refused_epoch);
    case FaultCode::kChunkRange: return counters_.Add(CoreCounter::refused_chunk_range);
    case FaultCode::kSlotRange: return counters_.Add(CoreCounter::refused_slot_range);
    case FaultCode::kSlotOccupied: return counters_.Add(CoreCounter::refused_slot_occupied);
    case FaultCode::kPayloadSize: return counters_.Add(CoreCounter::refused_payload_size);
    case FaultCode::kNotMember: return counters_.Add(CoreCounter::refused_member);
    case FaultCode::kUnexpectedKind: return counters_.Add(CoreCounter::refused_kind);
    case FaultCode::kStaleIteration: return counters_.Add(CoreCounter::refused_stale);
    case FaultCode::kIterationGap: return counters_.Add(CoreCounter::refused_gap);
    case FaultCode::kUnknownHyperParameters:
    case FaultCode::kHyperParametersRange:
    case FaultCode::kHyperParametersMismatch: return counters_.Add(CoreCounter::refused_record);
    case FaultCode::kNoCheckpoint:
    case FaultCode::kRoundMismatch: return counters_.Add(CoreCounter::refused_round);
    case FaultCode::kType: return counters_.Add(CoreCounter::refused_type);
    case FaultCode::kEncoding: return counters_.Add(CoreCounter::refused_encoding);
    case FaultCode::kReplyAddress:
    case FaultCode::kAlignment: return counters_.Add(CoreCounter::refused_address);
    case FaultCode::kVersionGone: return counters_.Add(CoreCounter::refused_version);
    case FaultCode::kDecision:
    case FaultCode::kDecisionMismatch: return counters_.Add(CoreCounter::refused_decision);
    case FaultCode::kNotInPlan: return counters_.Add(CoreCounter::refused_plan);
    case FaultCode::kNone:
    case FaultCode::kLaneLost:
    case FaultCode::kProtocol:
    case FaultCode::kKeyInUse:
    case FaultCode::kDepartedRank:
    case FaultCode::kNonFinite: return;
  }
}

}  // namespace phub::server
