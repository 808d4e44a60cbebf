#include "tests/sim/sim_peer_network.h"

#include <utility>

namespace phub::sim {
namespace {

constexpr DurationNs kLivenessTimeout = 2 * kSecond;  // ControlOptions' default
constexpr DurationNs kHeartbeatInterval = kLivenessTimeout / 4;
constexpr DurationNs kRetryInterval = 50 * kMillisecond;
constexpr DurationNs kDialTimeout = 3 * kSecond;

}  // namespace

SimPeerNetwork::SimPeerNetwork(SimNetwork& network, SeededRandom& random, const SimRack& daemons,
                               std::uint32_t self, std::uint32_t per_rack)
    : network_(network),
      random_(random),
      daemons_(daemons),
      self_(self),
      per_rack_(per_rack),
      links_(daemons.size() / per_rack) {}

void SimPeerNetwork::Start() {
  for (std::uint32_t rack = 0; rack < links_.size(); ++rack) {
    if (rack != self_ / per_rack_) DeliverAfter(server::RackIndex{rack}, DrawDelay());
  }
}

DurationNs SimPeerNetwork::DrawDelay() {
  return static_cast<DurationNs>(50'000 + random_.Below(2'000'000));
}

void SimPeerNetwork::After(DurationNs delay, std::function<void()> what) {
  network_.Schedule(network_.clock().Now() + delay, std::move(what));
}

server::DroppedMessages SimPeerNetwork::Send(server::RackIndex to, const server::PeerSender& sender,
                                             server::SharedPeerMessage message) {
  const v1::PeerMessage& sent = *message.message;
  if (note_plan_ && sent.has_group_keys() && !sent.group_keys().plan().empty())
    note_plan_(sent.incarnation(), sent.group_keys().group(), sent.group_keys().plan());
  Link& link = links_[to.value];
  const bool was_empty = link.queue.empty();
  server::DroppedMessages dropped = link.queue.Push(sender, std::move(message));
  // In the product, Control's lock is held here, so nothing happens before it is released.
  if (!link.under_way && was_empty) DeliverAfter(to, 0);
  return dropped;
}

void SimPeerNetwork::DeliverAfter(server::RackIndex to, DurationNs delay) {
  const std::uint64_t turn = ++links_[to.value].turn;
  After(delay, [this, to, turn] {
    if (links_[to.value].turn == turn) Deliver(to);
  });
}

void SimPeerNetwork::Deliver(server::RackIndex to) {
  links_[to.value].under_way = true;
  self().CallControl([this, to](server::Control& control) {
    Link& link = links_[to.value];
    const std::uint64_t turn = ++link.turn;
    v1::PeerEnvelope envelope = control.rack_messages().MakeEnvelope(to);
    link.queue.Fill(envelope);
    After(kLivenessTimeout, [this, to, turn] { Finish(to, turn, 0, std::nullopt); });
    After(DrawDelay(), [this, to, turn, envelope] { Arrive(to, turn, envelope); });
  });
}

void SimPeerNetwork::Arrive(server::RackIndex to, std::uint64_t turn,
                            const v1::PeerEnvelope& envelope) {
  SimDaemon& daemon = DaemonOf(to);
  const auto refused = [this, to, turn] {
    After(DrawDelay(), [this, to, turn] { Finish(to, turn, 0, std::nullopt); });
  };
  if (!daemon.alive()) return daemon.closed() ? refused() : void();
  if (random_.Chance(1, 64)) return refused();
  daemon.CallControl([this, to, turn, envelope, refused](server::Control& control) {
    const std::uint64_t taken =
        envelope.first_sequence() + static_cast<std::uint64_t>(envelope.messages_size());
    control.rack_messages().OnEnvelope(envelope, [&](const absl::Status& status,
                                                     const v1::PeerReceipt& receipt) {
      if (!status.ok() || random_.Chance(1, 64)) return refused();
      After(DrawDelay(), [this, to, turn, taken, receipt] { Finish(to, turn, taken, receipt); });
    });
  });
}

void SimPeerNetwork::Finish(server::RackIndex to, std::uint64_t turn, std::uint64_t taken,
                            const std::optional<v1::PeerReceipt>& receipt) {
  Link& link = links_[to.value];
  if (link.turn != turn || !self().alive()) return;
  link.under_way = false;
  if (!receipt) {
    ++repeated_;
    return DeliverAfter(to, kRetryInterval);
  }
  link.queue.Take(taken);
  DeliverAfter(to, link.queue.empty() ? kHeartbeatInterval : 0);
  self().CallControl([to, receipt = *receipt](server::Control& control) {
    control.rack_messages().OnReceipt(to, receipt);
  });
}

void SimPeerNetwork::DialLane(server::PeerLaneCall call) {
  After(DrawDelay(), [this, to = call.to, hello = call.hello] { Dial(to, hello); });
}

// Does the work of the dialer and of the other daemon's listener.
void SimPeerNetwork::Dial(server::RackIndex to, const wire::LaneHello& hello) {
  if (!self().alive() || !self().Turn([&](server::Control& control) {
        return control.peer_lanes().LacksPeerLane(hello, to);
      })) {
    return;
  }
  SimDaemon& daemon = DaemonOf(to);
  const auto fail = [this, to, hello](const absl::Status& why) {
    if (!self().alive()) return;
    self().Turn(
        [&](server::Control& control) { control.peer_lanes().PeerLaneFailed(hello, to, why); });
  };
  if (!daemon.alive()) {
    return After(daemon.closed() ? 0 : kDialTimeout,
                 [fail] { fail(absl::UnavailableError("nobody answers")); });
  }
  const wire::LaneRefusal refusal =
      daemon.Turn([&](server::Control& control) { return control.lanes().AdmitLane(hello); });
  if (refusal != wire::LaneRefusal::kNone) {
    const bool over = refusal == wire::LaneRefusal::kJob;  // as in common/transport/lane_request.cc
    return fail(absl::Status(
        over ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kPermissionDenied,
        wire::ToString(refusal)));
  }
  const std::uint32_t core = hello.core.value;
  auto [mine, theirs] = network_.Connect(self().node(core), daemon.node(core));
  daemon.Turn([&](server::Control& control) {
    control.lanes().AttachLane(hello, std::move(theirs), kSimTransportIndex, "sim",
                               self().endpoint());
  });
  self().Turn([&](server::Control& control) {
    control.peer_lanes().AttachPeerLane(hello, to, std::move(mine), kSimTransportIndex,
                                        "sim " + daemon.endpoint());
  });
}

}  // namespace phub::sim
