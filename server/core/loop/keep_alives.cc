#include "server/core/loop/keep_alives.h"

#include "server/core/exchange/shard_exchange.h"
#include "server/core/on_core_loop.h"

namespace phub::server {
namespace {

struct KeptLane {
  transport::Transport& transport;
  transport::ConnectionId id;
  transport::Connection& peer;
  // This end sends keep-alives only while it hears the peer. So if only the direction to this end
  // fails, the peer notices as well. One end of each lane must send in any case. Otherwise a short
  // outage in both directions would silence both ends forever.
  bool answers;
};

// Calls visit(lane) for the open lanes whose peers keep them alive.
template <typename Visit>
void ForKeptLanes(const LoopContext& loop, Visit&& visit) {
  for (const JobShard* const shard : loop.shards) {
    for (const Lane& lane : shard->lanes) {
      if (lane.state != Lane::State::kOpen || !lane.peer->keeps_alive()) continue;
      visit(KeptLane{*loop.transports[lane.transport_index], lane.connection, *lane.peer, false});
    }
    if (shard->exchange == nullptr) continue;
    const exchange::RackPlan& plan = shard->exchange->plan;
    for (std::uint32_t rack = 0; rack < shard->exchange->peers.size(); ++rack) {
      const exchange::PeerLane& lane = shard->exchange->peers[rack];
      if (!lane.open || !lane.peer->keeps_alive()) continue;
      visit(KeptLane{*loop.transports[lane.transport_index], lane.connection, *lane.peer,
                     plan.self.value > rack});
    }
  }
}

bool SendsOn(const KeptLane& lane, const transport::LookTimer& timer) {
  return !lane.answers || lane.peer.silence_meter().silence() <= timer.echo_limit();
}

}  // namespace

void KeepAlives::LookAtLanes() {
  PHUB_ON_CORE_LOOP();
  Forget();
  const DurationNs step = timer_.Take(loop_.now);
  const bool send = timer_.TakeKeepAlive(loop_.now);
  ForKeptLanes(loop_, [&](const KeptLane& lane) {
    lane.peer.silence_meter().Look(lane.transport.ActivityOf(lane.id), step);
    if (send && SendsOn(lane, timer_)) lane.transport.SendKeepAlive(lane.id);
  });
}

void KeepAlives::OnLongWork() {
  if (!timer_.TakeKeepAlive(loop_.clock.Now())) return;
  ForKeptLanes(loop_, [&](const KeptLane& lane) {
    if (SendsOn(lane, timer_)) lane.transport.SendKeepAlive(lane.id);
  });
}

}  // namespace phub::server
