#include "server/core/loop/lanes.h"

#include <algorithm>
#include <span>

#include "common/base/check.h"
#include "server/core/aggregate/aggregate.h"
#include "server/core/exchange/peer_window.h"
#include "server/core/on_core_loop.h"
#include "server/core/shard_sums.h"

namespace phub::server {
namespace {

// 1 ms at 1 Gbit/s, 10 us at 100 Gbit/s.
constexpr std::uint32_t kUnsentBytesMax = 128 * 1024;

bool BrokeForm(const transport::Completion& completion) {
  return completion.error == transport::TransportError::kProtocol;
}

Event LossOf(const LaneTable::Place& place, const transport::Completion& completion) {
  return {.code = BrokeForm(completion) ? FaultCode::kProtocol : FaultCode::kLaneLost,
          .error = completion.error,
          .protocol_error = completion.protocol_error,
          .source = place.owner,
          .key = KeyIndex::Max(),
          .shard = place.shard,
          .connection = place.connection};
}

// Likewise for lanes to racks; see LoopLanes::LimitUnsent.
void LimitUnsentToRacks(exchange::ShardExchange& exchange) {
  const std::uint32_t limit =
      exchange.has_classes ? exchange::UnsentBytesMax(exchange.lanes_open) : 0;
  for (exchange::PeerLane& peer : exchange.peers) {
    if (!peer.open || peer.unsent_bytes_max == limit) continue;
    peer.unsent_bytes_max = limit;
    peer.peer->LimitUnsent(limit);
  }
}

}  // namespace

LoopLanes::LoopLanes(LoopContext& loop, Outbox& outbox, reply::ReplyStage& replies)
    : loop_(loop), outbox_(outbox), replies_(replies), tables_(loop.transports.size()) {}

void LoopLanes::Attach(const Command& command) {
  PHUB_ON_CORE_LOOP();
  command.owner.is_rack() ? AttachRack(command) : AttachWorker(command);
}

// Returns an empty id, and reports to control that the lane is closed, if the lane is not wanted,
// the job has ended or failed, or the transport cannot serve it: its table is full, or the kernel
// lacks memory or watches. That concerns only this lane, and is a loss like any other.
transport::ConnectionId LoopLanes::Adopt(const Command& command, bool wanted,
                                         std::span<const transport::LandingSlot> landing) {
  JobShard& shard = *command.shard;
  transport::ConnectionId id;
  if (wanted && shard.live()) {
    id = loop_.transports[command.transport_index]->Adopt(*command.connection, landing);
  }
  if (id == transport::ConnectionId{}) {
    const bool refused = wanted && shard.live();
    if (refused && (command.owner.is_rack() || shard.config.on_loss == LossPolicy::kFail)) {
      outbox_.Fault({.code = FaultCode::kLaneLost,
                     .error = transport::TransportError::kLocalClosed,
                     .refused = true,
                     .source = command.owner,
                     .key = KeyIndex::Max(),
                     .shard = &shard,
                     .connection = command.connection});
    }
    outbox_.Emit({.kind = Event::Kind::kLaneClosed,
                  .error = transport::TransportError::kLocalClosed,
                  .refused = refused,
                  .source = command.owner,
                  .shard = &shard,
                  .connection = command.connection});
    return id;
  }
  tables_[command.transport_index].Insert(id, {&shard, command.owner, command.connection, true});
  ++shard.lanes_open;
  loop_.counters.Add(CoreCounter::lanes_attached);
  return id;
}

void LoopLanes::AttachWorker(const Command& command) {
  JobShard& shard = *command.shard;
  const Rank rank = command.owner.rank();
  PHUB_CHECK(rank.value < shard.lanes.size(), "rank={}", rank.value);
  Lane& lane = shard.lanes[rank.value];
  if (lane.state == Lane::State::kOpen) {  // the loss of the rank's old lane was not detected yet
    const transport::ConnectionId old = lane.connection;
    tables_[lane.transport_index].Replace(old);
    loop_.transports[lane.transport_index]->Close(old);
    LoseLane(shard, rank);
  }
  if (shard.live()) {
    PHUB_CHECK(command.staging != nullptr);
    const std::uint32_t slot_bytes = shard.config.chunk_bytes;
    const std::uint32_t before = command.connection->slot_header_bytes();
    for (std::size_t slot = 0; slot < lane.landing.size(); ++slot) {
      lane.landing[slot] = {command.staging + slot * (before + slot_bytes) + before, slot_bytes};
    }
  }
  const transport::ConnectionId id = Adopt(command, true, lane.landing);
  if (id == transport::ConnectionId{}) return;
  lane.state = Lane::State::kOpen;
  lane.transport_index = command.transport_index;
  lane.connection = id;
  lane.peer = command.connection;
  lane.peer->silence_meter().Begin(loop_.transports[command.transport_index]->ActivityOf(id));
  NoteNewLane(shard, rank);
  if (shard.limits_unsent) lane.peer->LimitUnsent(kUnsentBytesMax);
  if (shard.turn.held) loop_.transports[command.transport_index]->Hold(id, true);
}

void LoopLanes::AttachRack(const Command& command) {
  JobShard& shard = *command.shard;
  const RackIndex rack = command.owner.rack();
  PHUB_CHECK(shard.exchange != nullptr && rack.value < shard.exchange->plan.rack_count);
  exchange::PeerLane& peer = shard.exchange->peers[rack.value];
  const transport::ConnectionId id = Adopt(command, !peer.open, peer.landing);
  if (id == transport::ConnectionId{}) return;
  peer.open = true;
  peer.transport_index = command.transport_index;
  peer.connection = id;
  peer.peer = command.connection;
  peer.peer->silence_meter().Begin(loop_.transports[command.transport_index]->ActivityOf(id));
  peer.unsent_bytes_max = 0;
  ++shard.exchange->lanes_open;
  LimitUnsentToRacks(*shard.exchange);
}

void LoopLanes::OnClosed(std::uint8_t transport_index, const transport::Completion& completion) {
  PHUB_ON_CORE_LOOP();
  LaneTable& table = tables_[transport_index];
  const LaneTable::Place* found = table.Find(completion.connection);
  if (found == nullptr) return;
  const LaneTable::Place place = *found;
  table.Erase(completion.connection);
  JobShard& shard = *place.shard;
  PHUB_CHECK(shard.lanes_open > 0, "connection={}", completion.connection.index);
  loop_.counters.Add(CoreCounter::lanes_closed);
  if (BrokeForm(completion)) loop_.counters.Add(CoreCounter::refused_protocol);
  if (place.owner.is_rack()) {
    OnRackClosed(place, completion);
  } else if (place.current) {
    OnWorkerClosed(place, completion);
  }
  outbox_.Emit({.kind = Event::Kind::kLaneClosed,
                .error = completion.error,
                .protocol_error = completion.protocol_error,
                .source = place.owner,
                .shard = &shard,
                .connection = place.connection});
  --shard.lanes_open;
}

void LoopLanes::OnWorkerClosed(const LaneTable::Place& place,
                               const transport::Completion& completion) {
  JobShard& shard = *place.shard;
  const Rank rank = place.owner.rank();
  const bool departed = shard.lanes[rank.value].departed;
  LoseLane(shard, rank);
  if (!shard.live() || departed) return;
  if (BrokeForm(completion) || shard.config.on_loss == LossPolicy::kFail) {
    outbox_.Fault(LossOf(place, completion));
  }
}

// Lanes are closed normally when the job ends; any other loss ends the job.
void LoopLanes::OnRackClosed(const LaneTable::Place& place,
                             const transport::Completion& completion) {
  JobShard& shard = *place.shard;
  exchange::PeerLane& peer = shard.exchange->peers[place.owner.rack().value];
  peer.open = false;
  peer.peer = nullptr;
  --shard.exchange->lanes_open;
  exchange::ForgetMessages(*shard.exchange, peer);
  LimitUnsentToRacks(*shard.exchange);
  if (BrokeForm(completion)) loop_.counters.Add(CoreCounter::refused_peer);
  if (shard.live()) outbox_.Fault(LossOf(place, completion));
}

// Detaches the lane from its rank. Gradients that are staged and not folded are discarded; folded
// and applied gradients are kept; waiting replies and credits are dropped. A new lane starts with
// every slot free.
void LoopLanes::LoseLane(JobShard& shard, Rank rank) {
  Lane& lane = shard.lanes[rank.value];
  loop_.counters.Add(CoreCounter::staged_discarded, aggregate::DiscardStaged(shard, rank));
  replies_.Forget(shard, rank);
  loop_.relief_due = true;
  lane.state = Lane::State::kAbsent;
  lane.connection = {};
  lane.peer = nullptr;
}

void LoopLanes::CloseAll(JobShard& shard) {
  PHUB_ON_CORE_LOOP();
  if (shard.exchange != nullptr) {
    for (const exchange::PeerLane& peer : shard.exchange->peers) {
      if (peer.open) loop_.transports[peer.transport_index]->Close(peer.connection);
    }
  }
  for (const Lane& lane : shard.lanes) {
    if (lane.state != Lane::State::kOpen) continue;
    loop_.transports[lane.transport_index]->Close(lane.connection);
  }
}

void LoopLanes::Hold(const JobShard& shard, bool held) {
  for (const Lane& lane : shard.lanes) {
    if (lane.state != Lane::State::kOpen) continue;
    loop_.transports[lane.transport_index]->Hold(lane.connection, held);
  }
}

void LoopLanes::LimitUnsent(JobShard& shard) {
  if (shard.exchange != nullptr) LimitUnsentToRacks(*shard.exchange);
  const auto below_top = std::span(shard.chunks_at).first(shard.top_level);
  const bool limits =
      std::ranges::any_of(below_top, [](std::uint32_t chunks) { return chunks > 0; });
  if (limits == shard.limits_unsent) return;
  shard.limits_unsent = limits;
  for (const Lane& lane : shard.lanes) {
    if (lane.state == Lane::State::kOpen) lane.peer->LimitUnsent(limits ? kUnsentBytesMax : 0);
  }
}

// L1: an open lane's connection is in the table, as the current one of its owner.
void LoopLanes::CheckPlace(const JobShard& shard, std::uint8_t transport_index,
                           transport::ConnectionId id, LaneOwner owner) const {
  PHUB_CHECK(transport_index < tables_.size(), "L1 transport={}", transport_index);
  const LaneTable::Place* const place = tables_[transport_index].Find(id);
  PHUB_CHECK(place != nullptr && place->current, "L1 connection={}", id.index);
  PHUB_CHECK(place->shard == &shard && place->owner == owner, "L1 connection={}", id.index);
}

void LoopLanes::CheckInvariants() const {
  std::size_t open = 0;
  for (const JobShard* const shard : loop_.shards) {
    open += shard->lanes_open;
    for (std::uint32_t rank = 0; rank < shard->lanes.size(); ++rank) {
      const Lane& lane = shard->lanes[rank];
      if (lane.state != Lane::State::kOpen) continue;
      CheckPlace(*shard, lane.transport_index, lane.connection, Rank{rank});
    }
    if (shard->exchange == nullptr) continue;
    for (std::uint32_t rack = 0; rack < shard->exchange->peers.size(); ++rack) {
      const exchange::PeerLane& peer = shard->exchange->peers[rack];
      if (peer.open) CheckPlace(*shard, peer.transport_index, peer.connection, RackIndex{rack});
    }
  }
  std::size_t used = 0;
  for (const LaneTable& table : tables_) used += table.used();
  PHUB_CHECK(used == open, "L2 rows={} open={}", used, open);
}

}  // namespace phub::server
