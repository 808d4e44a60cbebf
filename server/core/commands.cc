#include "server/core/commands.h"

namespace phub::server {

const char* ToString(FaultCode code) {
  switch (code) {
    case FaultCode::kNone: return "none";
    case FaultCode::kLaneLost: return "lane_lost";
    case FaultCode::kProtocol: return "protocol";
    case FaultCode::kWrongIncarnation: return "wrong_incarnation";
    case FaultCode::kWrongEpoch: return "wrong_epoch";
    case FaultCode::kChunkRange: return "chunk_range";
    case FaultCode::kSlotRange: return "slot_range";
    case FaultCode::kSlotOccupied: return "slot_occupied";
    case FaultCode::kPayloadSize: return "payload_size";
    case FaultCode::kUnexpectedKind: return "unexpected_kind";
    case FaultCode::kStaleIteration: return "stale_iteration";
    case FaultCode::kIterationGap: return "iteration_gap";
    case FaultCode::kUnknownHyperParameters: return "unknown_record";
    case FaultCode::kHyperParametersRange: return "record_range";
    case FaultCode::kHyperParametersMismatch: return "record_mismatch";
    case FaultCode::kRoundMismatch: return "round_mismatch";
    case FaultCode::kDepartedRank: return "departed_rank";
    case FaultCode::kType: return "type";
    case FaultCode::kReplyAddress: return "reply_address";
    case FaultCode::kAlignment: return "alignment";
    case FaultCode::kEncoding: return "encoding";
    case FaultCode::kVersionGone: return "version_gone";
    case FaultCode::kNoCheckpoint: return "no_state";
    case FaultCode::kNonFinite: return "non_finite";
    case FaultCode::kDecision: return "decision";
    case FaultCode::kDecisionMismatch: return "decision_mismatch";
    case FaultCode::kNotInPlan: return "not_in_plan";
    case FaultCode::kNotMember: return "not_member";
    case FaultCode::kKeyInUse: return "key_in_use";
  }
  return "unknown";
}

}  // namespace phub::server
