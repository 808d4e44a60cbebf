// What a core loop does for jobs that span racks, beside the data path of core_loop.cc: lanes to
// the core loops of other racks, and rounds that are not over when the own ranks' gradients are in.
#include <cstring>

#include "server/core/core_loop_state.h"
#include "server/core/state/shard_state.h"

namespace phub::server {

using exchange::Step;
using wire::RoundOperation;

// Every own rank's gradient is here, and it is the job's turn: their sum moves to the chunk's
// accumulator and the slots are free at once, so that workers never wait for another rack.
void CoreLoop::State::OnLocalSum(JobShard& shard, Chunk& chunk) {
  const bool has_payload = aggregate::FoldAll(shard, chunk, freed);
  for (const aggregate::FreedSlot& slot : freed.all()) Credit(shard, slot);
  if (shard.non_finite.seen) TellNonFinite(shard);
  if (!shard.live()) return;  // rejected: no other rack is told of the round
  OnExchanged(shard, shard.exchange->plan.self, exchanges.OnLocalSum(shard, chunk, has_payload));
}

// What other racks send is not put off, since they wait for it; but it is charged: as what workers
// send, and for what it makes this core loop do.
void CoreLoop::State::OnPeerMessage(JobShard& shard, RackIndex rack,
                                    const transport::ReceivedMessage& message) {
  if (!fair.Shares()) return OnExchanged(shard, rack, exchanges.OnMessage(shard, rack, message));
  const TimeNs before = clock.Now();
  OnExchanged(shard, rack, exchanges.OnMessage(shard, rack, message));
  fair.Charge(shard, clock.Now() - before + schedule::TimeToTakeIn(message.header.payload_bytes));
}

void CoreLoop::State::OnExchanged(JobShard& shard, RackIndex rack,
                                  const exchange::Verdict& verdict) {
  switch (verdict.step) {
    case Step::kWaits: return;
    case Step::kTotal: return ApplyTotal(shard, *verdict.chunk);
    case Step::kResult: return TakeResult(shard, *verdict.chunk);
    case Step::kFault: break;
  }
  CountRefusal(verdict.fault);
  if (rack != shard.exchange->plan.self) counters.Add(CoreCounter::refused_peer);
  Fault({.code = verdict.fault,
         .rank = Rank{kPeerRankBase + rack.value},
         .other_rank = Rank{kPeerRankBase + verdict.other.value},
         .key = verdict.chunk != nullptr ? verdict.chunk->key->key : KeyIndex::Max(),
         .iteration =
             verdict.chunk != nullptr ? Iteration{verdict.chunk->applied.value + 1} : Iteration{},
         .shard = &shard});
}

// The home: the optimizer runs here, once for all racks, and saved state is put in place. Control
// may have taken that back while other racks were awaited.
void CoreLoop::State::ApplyTotal(JobShard& shard, Chunk& chunk) {
  state::BeforeRound(shard, chunk);
  if (chunk.operation == RoundOperation::kLoad) {
    if (!shard.StateIsBrought(chunk)) {
      return OnExchanged(shard, shard.exchange->plan.self,
                         {Step::kFault, FaultCode::kNoState, &chunk});
    }
    state::PutInPlace(shard, chunk, replies.OwnReplies(shard, chunk));
    return CompleteRound(shard, chunk);
  }
  simd::Terms terms;
  if (chunk.operation == RoundOperation::kReduce) {
    terms.folded = chunk.accumulator;
  } else {
    term_list[0] = chunk.accumulator;
    terms.inputs = {term_list.data(), 1};
  }
  ApplyAndComplete(shard, chunk, terms);
}

void CoreLoop::State::TakeResult(JobShard& shard, Chunk& chunk) {
  for (std::byte* const own : replies.OwnReplies(shard, chunk)) {
    std::memcpy(own, chunk.NextParameters(), chunk.reply_bytes());
  }
  if (chunk.operation == RoundOperation::kLoad) state::CountAsBrought(shard, chunk);
  CompleteRound(shard, chunk);
}

void CoreLoop::State::AttachPeer(const Command& command) {
  JobShard& shard = *command.shard;
  const RackIndex rack{command.rank.value - kPeerRankBase};
  PHUB_CHECK(shard.exchange != nullptr && rack.value < shard.exchange->plan.rack_count);
  exchange::PeerLane& peer = shard.exchange->peers[rack.value];
  const transport::ConnectionId id = Adopt(command, !peer.open, peer.landing);
  if (id == transport::ConnectionId{}) return;
  peer.open = true;
  peer.transport_index = command.transport_index;
  peer.connection = id;
}

// On its way out a job closes its lanes in order; any other loss ends it.
void CoreLoop::State::OnPeerClosed(const LaneTable::Place& place,
                                   const transport::Completion& completion) {
  JobShard& shard = *place.shard;
  exchange::PeerLane& peer = shard.exchange->peers[place.rank.value - kPeerRankBase];
  peer.open = false;
  shard.exchange->waiting_count -=
      static_cast<std::uint32_t>(peer.waiting_end - peer.waiting_begin);
  peer.waiting_begin = peer.waiting_end;
  const bool broke_form = completion.error == transport::TransportError::kProtocol;
  if (broke_form) counters.Add(CoreCounter::refused_peer);
  if (shard.live()) {
    Fault({.code = broke_form ? FaultCode::kProtocol : FaultCode::kLaneLost,
           .error = completion.error,
           .protocol_error = completion.protocol_error,
           .rank = place.rank,
           .key = KeyIndex::Max(),
           .shard = &shard,
           .connection = place.connection});
  }
}

void CoreLoop::State::ClosePeers(JobShard& shard) {
  if (shard.exchange == nullptr) return;
  for (const exchange::PeerLane& peer : shard.exchange->peers) {
    if (peer.open) transports[peer.transport_index]->Close(peer.connection);
  }
}

}  // namespace phub::server
