#include "server/core/loop/keep_alives.h"

#include "server/core/on_core_loop.h"

namespace phub::server {
namespace {

// Calls visit(transport, connection id, connection) for the open lanes of workers that keep lanes
// alive.
template <typename Visit>
void ForKeptLanes(const LoopContext& loop, Visit&& visit) {
  for (const JobShard* const shard : loop.shards) {
    for (const Lane& lane : shard->lanes) {
      if (lane.state != Lane::State::kOpen || !lane.peer->keeps_alive()) continue;
      visit(*loop.transports[lane.transport_index], lane.connection, *lane.peer);
    }
  }
}

}  // namespace

void KeepAlives::LookAtLanes() {
  PHUB_ON_CORE_LOOP();
  worked_bytes_ = 0;
  const DurationNs step = timer_.Take(loop_.now);
  const bool send = timer_.TakeKeepAlive(loop_.now);
  ForKeptLanes(loop_, [&](transport::Transport& transport, transport::ConnectionId id,
                          transport::Connection& peer) {
    peer.silence_meter().Look(transport.ActivityOf(id), step);
    if (send) transport.SendKeepAlive(id);
  });
}

void KeepAlives::SendDuringWork() {
  worked_bytes_ = 0;
  if (!timer_.TakeKeepAlive(loop_.clock.Now())) return;
  ForKeptLanes(loop_, [](transport::Transport& transport, transport::ConnectionId id,
                         const transport::Connection&) { transport.SendKeepAlive(id); });
}

}  // namespace phub::server
