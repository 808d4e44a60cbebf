// How a core loop loses lanes, stops jobs at their first fault, and tells control.
#include "server/core/core_loop_state.h"

namespace phub::server {

void CoreLoop::State::OnClosed(std::uint8_t transport_index,
                               const transport::Completion& completion) {
  LaneTable& table = lane_tables[transport_index];
  const LaneTable::Place* found = table.Find(completion.connection);
  if (found == nullptr) return;
  const LaneTable::Place place = *found;
  table.Erase(completion.connection);
  JobShard& shard = *place.shard;
  counters.Add(CoreCounter::lanes_closed);
  if (completion.error == transport::TransportError::kProtocol) {
    counters.Add(CoreCounter::refused_protocol);
  }
  if (place.rank.value >= kPeerRankBase) {
    OnPeerClosed(place, completion);
  } else if (place.current) {
    const bool departed = shard.lanes[place.rank.value].departed;
    LoseLane(shard, place.rank);
    const bool broke_form = completion.error == transport::TransportError::kProtocol;
    if (shard.live() && !departed && (broke_form || shard.config.on_loss == LossPolicy::kFail)) {
      Fault({.code = broke_form ? FaultCode::kProtocol : FaultCode::kLaneLost,
             .error = completion.error,
             .protocol_error = completion.protocol_error,
             .rank = place.rank,
             .key = KeyIndex::Max(),
             .shard = &shard,
             .connection = place.connection});
    }
  }
  Emit({.kind = Event::Kind::kLaneClosed,
        .error = completion.error,
        .protocol_error = completion.protocol_error,
        .rank = place.rank,
        .shard = &shard,
        .connection = place.connection});
  --shard.lanes_open;
}

// The lane is no longer the rank's. What it had staged and not folded is discarded; folded and
// applied gradients stand; nothing waits for it. A new lane starts with every slot free.
void CoreLoop::State::LoseLane(JobShard& shard, Rank rank) {
  Lane& lane = shard.lanes[rank.value];
  counters.Add(CoreCounter::staged_discarded, aggregate::DiscardStaged(shard, rank));
  replies.Forget(shard, rank);
  lane.state = Lane::State::kAbsent;
  lane.connection = {};
}

void CoreLoop::State::CountRefusal(FaultCode code) {
  switch (code) {
    case FaultCode::kWrongIncarnation: return counters.Add(CoreCounter::refused_incarnation);
    case FaultCode::kWrongEpoch: return counters.Add(CoreCounter::refused_epoch);
    case FaultCode::kChunkRange: return counters.Add(CoreCounter::refused_chunk_range);
    case FaultCode::kSlotRange: return counters.Add(CoreCounter::refused_slot_range);
    case FaultCode::kSlotOccupied: return counters.Add(CoreCounter::refused_slot_occupied);
    case FaultCode::kPayloadSize: return counters.Add(CoreCounter::refused_payload_size);
    case FaultCode::kUnexpectedKind: return counters.Add(CoreCounter::refused_kind);
    case FaultCode::kStaleIteration: return counters.Add(CoreCounter::refused_stale);
    case FaultCode::kIterationGap: return counters.Add(CoreCounter::refused_gap);
    case FaultCode::kUnknownRecord:
    case FaultCode::kRecordRange:
    case FaultCode::kRecordMismatch: return counters.Add(CoreCounter::refused_record);
    case FaultCode::kNoState:
    case FaultCode::kRoundMismatch: return counters.Add(CoreCounter::refused_round);
    case FaultCode::kType: return counters.Add(CoreCounter::refused_type);
    case FaultCode::kReplyAddress:
    case FaultCode::kAlignment: return counters.Add(CoreCounter::refused_address);
    case FaultCode::kVersionGone: return counters.Add(CoreCounter::refused_version);
    case FaultCode::kDecision:
    case FaultCode::kDecisionMismatch: return counters.Add(CoreCounter::refused_decision);
    case FaultCode::kNotInPlan: return counters.Add(CoreCounter::refused_plan);
    case FaultCode::kNone:
    case FaultCode::kLaneLost:
    case FaultCode::kProtocol:
    case FaultCode::kDepartedRank:
    case FaultCode::kNonFinite: return;
  }
}

// The first fault of a shard stops it: control ends the job and tells every rank.
void CoreLoop::State::Fault(Event event) {
  if (event.shard->faulted) return;
  event.shard->faulted = true;
  event.kind = Event::Kind::kFault;
  counters.Add(CoreCounter::faults);
  Emit(event);
}

// The first sum of a shard that is not finite: an event, or the end of the job.
void CoreLoop::State::TellNonFinite(JobShard& shard) {
  NonFinite& first = shard.non_finite;
  if (first.told) return;
  first.told = true;
  Event event = {.kind = Event::Kind::kNonFinite,
                 .code = FaultCode::kNonFinite,
                 .rank = first.rank,
                 .key = first.key,
                 .iteration = first.iteration,
                 .shard = &shard};
  if (shard.config.screening == Screening::kReject) return Fault(event);
  Emit(event);
}

void CoreLoop::State::Emit(const Event& event) {
  if (outbox.empty() && queues.events.TryPush(event)) return;
  PHUB_CHECK(outbox.size() < kOutboxMax);
  outbox.push_back(event);
}

// True if nothing is left to send.
bool CoreLoop::State::FlushEvents() {
  std::size_t sent = 0;
  while (sent < outbox.size() && queues.events.TryPush(outbox[sent])) ++sent;
  outbox.erase(outbox.begin(), outbox.begin() + static_cast<std::ptrdiff_t>(sent));
  return outbox.empty();
}

}  // namespace phub::server
