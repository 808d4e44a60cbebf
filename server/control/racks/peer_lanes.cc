#include "server/control/racks/peer_lanes.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/control/jobs/ending.h"
#include "server/control/on_control.h"
#include "server/control/racks/peer_offers.h"
#include "server/control/racks/rack_liveness.h"
#include "server/control/racks/rack_messages.h"
#include "server/control/racks/rack_opening.h"
#include "server/control/racks/rack_run.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

bool IsNeighbor(const RackRun& run, std::uint32_t rack) {
  return (run.exchange->plan.neighbors >> rack & 1) != 0;
}

std::string DescribePeerLoss(const Event& event) { return DescribeLoss(event, "the other daemon"); }

wire::Nonce NonceOf(const std::string& bytes) {
  wire::Nonce nonce;
  std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), nonce.size(), nonce.begin());
  return nonce;
}

std::string BytesOf(const wire::Nonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

// Whether the message is complete and well-formed.
bool IsWhole(const v1::PeerConnect& connect, std::size_t core_count) {
  return connect.grants_size() == static_cast<int>(core_count) &&
         connect.cores_size() == connect.grants_size() && OffersAreWhole(connect) &&
         std::ranges::all_of(connect.grants(), [&](const v1::LaneGrant& grant) {
           return grant.core() < core_count && grant.nonce().size() == sizeof(wire::Nonce);
         });
}

// A network path can let a lane connect and still drop all packets, or all of full length. Such a
// path costs one job; the next jobs use another transport for this long.
constexpr DurationNs kAvoidAfterLoss = 600 * kSecond;

// The job will fail with this fault at `due`, unless it has ended before or failed for a reason
// that another rack reports.
void PutOff(RackRun& run, RackIndex rack, v1::Fault fault, TimeNs due) {
  const RackSteps steps = run.protocol.On(RunEvent::kLaneLost, rack, due);
  if (Has(steps, RackAction::kPutFaultOff)) run.put_off = std::move(fault);
}

}  // namespace

void PeerLanes::GrantPeerLanes(Job& job, const RackSteps& steps) {
  PHUB_ON_CONTROL();
  RackRun& run = *job.rack_run;
  const bool encryption_required = context_.ledger.RequiresEncryption(job.account.tenant);
  const LaneTransports& transports = context_.options.lane_transports;
  const TimeNs expires = context_.clock.Now() + context_.options.nonce_lifetime;
  for (const auto& [action, to] : steps) {
    if (action != RackAction::kGrantLanes) continue;
    const std::uint32_t rack = to.value;
    v1::PeerMessage message;
    v1::PeerConnect& connect = *message.mutable_connect();
    connect.set_tls_lanes(context_.options.tls_lanes);
    for (std::size_t core = 0; core < context_.cores.size(); ++core) {
      PeerLanePlace& place = run.racks[rack].lanes[core];
      place.offers.assign(transports.size(), {});
      const wire::Nonce& nonce = place.nonce.Grant(context_.random, expires);
      context_.counters.Add(ControlCounter::lanes_granted);
      v1::LaneGrant& grant = *connect.add_grants();
      grant.set_core(static_cast<std::uint32_t>(core));
      grant.set_nonce(nonce.data(), nonce.size());
      v1::CoreEndpoint& endpoint = *connect.add_cores();
      endpoint.set_core(static_cast<std::uint32_t>(core));
      endpoint.set_host(context_.endpoints[core].host);
      endpoint.set_port(context_.endpoints[core].port);
    }
    for (std::size_t i = 0; i < transports.size(); ++i) {
      if (!WhyNotOffered(transports[i], encryption_required).empty()) continue;
      std::vector<std::string> nonces;
      for (PeerLanePlace& place : run.racks[rack].lanes)
        nonces.push_back(BytesOf(place.offers[i].Grant(context_.random, expires)));
      AddOffer(transports[i], std::move(nonces), connect);
    }
    messages_.SendToRack(RackIndex{rack}, job.account.incarnation, std::move(message));
  }
}

// An empty message from rack 0 means that every rack has the job, so lanes may be granted.
// Otherwise the message contains lanes to dial.
void PeerLanes::HandleConnect(Job& job, RackIndex from, const v1::PeerConnect& connect) {
  PHUB_ON_CONTROL();
  RackRun& run = *job.rack_run;
  if (connect.grants().empty()) {
    if (run.protocol.standing()) return;
    return GrantPeerLanes(job, run.protocol.On(RunEvent::kConnectReceived, from));
  }
  if (!IsWhole(connect, context_.cores.size()) ||
      !Has(run.protocol.OnPeer(from, PeerEvent::kLanesOffered), RackAction::kDialLanes)) {
    context_.counters.Add(ControlCounter::peers_refused_place);
    return;
  }
  if (!connect.tls_lanes() && context_.ledger.RequiresEncryption(job.account.tenant)) {
    context_.counters.Add(ControlCounter::lanes_refused_encryption);
    return ending_.Fail(
        job,
        ending_.MakeFault(job, "rack_refused",
                          fmt::format("tenant {} requires encrypted lanes, but {} offers "
                                      "unencrypted ones: data_tls is off there",
                                      job.account.tenant, context_.options.DescribeRack(from))));
  }
  run.group_neighbors |= exchange::RackBit(from) & ~run.exchange->plan.neighbors;
  const PeerOffers offers = OffersOf(job, from, connect);
  if (!offers.missing.empty()) {
    return ending_.Fail(
        job, ending_.MakeFault(
                 job, "rack_refused",
                 fmt::format("lanes between {} and {} must use {} (peer_transport = {}), which is "
                             "not possible: {}",
                             context_.options.DescribeRack(RackIndex{context_.options.rack_index}),
                             context_.options.DescribeRack(from), offers.missing, offers.missing,
                             offers.reason)));
  }
  const LaneTransports& transports = context_.options.lane_transports;
  context_.log.Info(
      "event=peer_lanes_dialled tenant={} job=\"{}\" rack={} count={} first={} reason=\"{}\"",
      job.account.tenant, job.name(), from.value, connect.grants_size(),
      offers.usable.empty() ? "tcp" : transports[offers.usable.front().transport_index].name,
      offers.usable.empty() ? offers.reason : "both daemons offer it");
  for (int i = 0; i < connect.grants_size(); ++i) {
    const v1::LaneGrant& grant = connect.grants(i);
    PeerLaneCall call{.to = from,
                      .host = connect.cores(i).host(),
                      .port = static_cast<std::uint16_t>(connect.cores(i).port()),
                      .hello = {},
                      .tls = connect.tls_lanes(),
                      .offers = {},
                      .offers_only = offers.offers_only};
    call.hello.core = CoreIndex{grant.core()};
    call.hello.rank = LaneOwner::HelloRank(RackIndex{context_.options.rack_index});
    call.hello.incarnation = job.account.incarnation;
    call.hello.membership_epoch = job.config.membership_epoch;
    call.hello.nonce = NonceOf(grant.nonce());
    for (const UsableOffer& offer : offers.usable) {
      const std::string& nonce = offer.nonces[static_cast<std::size_t>(i)];
      call.offers.push_back({offer.transport_index, NonceOf(nonce)});
    }
    network_->DialLane(std::move(call));
  }
}

PeerOffers PeerLanes::OffersOf(const Job& job, RackIndex from,
                               const v1::PeerConnect& connect) const {
  const std::string peer = context_.options.DescribeRack(from);
  const auto why_avoided = [&](const std::string& transport) -> std::string {
    if (!known_.IsAvoided(from, transport, context_.clock.Now())) return {};
    return fmt::format("a lane to {} over {} was lost less than {} ago", peer, transport,
                       FormatAge(kAvoidAfterLoss));
  };
  return ChooseOffers(
      context_.options.lane_transports, connect,
      {.peer = peer,
       .encryption_required = context_.ledger.RequiresEncryption(job.account.tenant),
       .why_avoided = why_avoided});
}

PeerLanePlace* PeerLanes::FindGrantedPeer(const wire::LaneHello& hello,
                                          wire::LaneRefusal& refusal) {
  const std::uint32_t rack = LaneOwner::OfHello(hello.rank).rack().value;
  Job* job = jobs_.FindIncarnation(hello.incarnation);
  if (job == nullptr || !job->running() || hello.membership_epoch != job->config.membership_epoch) {
    refusal = wire::LaneRefusal::kJob;
    return nullptr;
  }
  refusal = wire::LaneRefusal::kNonce;
  if (job->rack_run == nullptr) return nullptr;
  RackRun& run = *job->rack_run;
  if (rack >= run.racks.size() || hello.core.value >= context_.cores.size()) return nullptr;
  PeerLanePlace& place = run.racks[rack].lanes[hello.core.value];
  const auto is_good = [now = context_.clock.Now()](const GrantedNonce& nonce) {
    return nonce.IsGood(now);
  };
  const bool good = is_good(place.nonce) || std::ranges::any_of(place.offers, is_good);
  return good ? &place : nullptr;
}

std::optional<wire::Nonce> PeerLanes::FindNonce(const wire::LaneHello& hello) {
  PHUB_ON_CONTROL();
  wire::LaneRefusal refusal{};
  const PeerLanePlace* const place = FindGrantedPeer(hello, refusal);
  if (place == nullptr || !place->nonce.IsGood(context_.clock.Now())) return std::nullopt;
  return place->nonce.value();
}

wire::LaneRefusal PeerLanes::Check(const wire::LaneHello& hello, bool encrypted) {
  PHUB_ON_CONTROL();
  wire::LaneRefusal refusal{};
  PeerLanePlace* const place = FindGrantedPeer(hello, refusal);
  if (place == nullptr) return refusal;
  // The nonce of an offer is sent unencrypted and may have been observed, so it is not accepted
  // inside TLS.
  const auto takes = [&](GrantedNonce& nonce) {
    return nonce.IsGood(context_.clock.Now()) && nonce.Take(hello.nonce);
  };
  if (!takes(place->nonce) && (encrypted || !std::ranges::any_of(place->offers, takes))) {
    return wire::LaneRefusal::kNonce;
  }
  const Job& job = *jobs_.FindIncarnation(hello.incarnation);
  if (!encrypted && context_.ledger.RequiresEncryption(job.account.tenant)) {
    return wire::LaneRefusal::kEncryption;
  }
  return place->connection != nullptr ? wire::LaneRefusal::kBusy : wire::LaneRefusal::kNone;
}

// Whether the job runs and the lane is not open yet; otherwise dialling it is useless.
bool PeerLanes::LacksPeerLane(const wire::LaneHello& hello, RackIndex rack) const {
  PHUB_ON_CONTROL();
  const auto [incarnation, core] = std::pair(hello.incarnation, hello.core);
  const Job* const job = jobs_.FindIncarnation(incarnation);
  return job != nullptr && job->running() && job->rack_run != nullptr &&
         rack.value < job->rack_run->racks.size() && core.value < context_.cores.size() &&
         job->rack_run->racks[rack.value].lanes[core.value].connection == nullptr;
}

void PeerLanes::Attach(const wire::LaneHello& hello,
                       std::unique_ptr<transport::Connection> connection,
                       std::uint8_t transport_index, std::string description) {
  PHUB_ON_CONTROL();
  AttachPeerLane(hello, LaneOwner::OfHello(hello.rank).rack(), std::move(connection),
                 transport_index, std::move(description));
}

void PeerLanes::AttachPeerLane(const wire::LaneHello& hello, RackIndex rack,
                               std::unique_ptr<transport::Connection> connection,
                               std::uint8_t transport_index, std::string description) {
  PHUB_ON_CONTROL();
  const auto [incarnation, core] = std::pair(hello.incarnation, hello.core);
  Job* job = jobs_.FindIncarnation(incarnation);
  if (!LacksPeerLane(hello, rack)) {
    context_.counters.Add(ControlCounter::lanes_dropped);
    return;
  }
  PeerLanePlace& place = job->rack_run->racks[rack.value].lanes[core.value];
  place.connection = std::move(connection);
  place.description = std::move(description);
  context_.log.Info("event=peer_lane_attached tenant={} job=\"{}\" rack={} core={} lane=\"{}\"",
                    job->account.tenant, job->name(), rack.value, core.value, place.description);
  context_.cores[core.value].Send({.kind = Command::Kind::kAttachLane,
                                   .transport_index = transport_index,
                                   .owner = rack,
                                   .shard = job->shards[core.value].get(),
                                   .connection = place.connection.get()});
  opening_.AdvanceRackRun(*job);
}

void PeerLanes::PeerLaneFailed(const wire::LaneHello& hello, RackIndex rack,
                               const absl::Status& why) {
  PHUB_ON_CONTROL();
  const auto [incarnation, core] = std::pair(hello.incarnation, hello.core);
  Job* job = jobs_.FindIncarnation(incarnation);
  if (job == nullptr || !job->running() || job->rack_run == nullptr) return;
  // A rack that has ended the job refuses the lane. It sends the reason over another connection.
  PutOff(*job->rack_run, rack,
         ending_.MakeFault(
             *job, "rack_unreachable",
             fmt::format("no lane to core {} of {}: {}", core.value,
                         context_.options.DescribeRack(rack), std::string(why.message()))),
         context_.clock.Now() + context_.options.liveness_timeout / 2);
}

bool PeerLanes::HasAllLanes(const RackRun& run) const {
  PHUB_ON_CONTROL();
  for (std::uint32_t rack = 0; rack < run.racks.size(); ++rack) {
    if (!IsNeighbor(run, rack)) continue;
    for (const PeerLanePlace& place : run.racks[rack].lanes) {
      if (place.connection == nullptr) return false;
    }
  }
  return true;
}

void PeerLanes::HandlePeerLaneClosed(Job& job, CoreIndex core, const Event& event) {
  PHUB_ON_CONTROL();
  const std::uint32_t rack = event.source.rack().value;
  PeerLanePlace& place = job.rack_run->racks[rack].lanes[core.value];
  PHUB_CHECK(place.connection.get() == event.connection, "job={} rack={}", job.name(), rack);
  if (event.refused) context_.counters.Add(ControlCounter::lanes_refused_shortage);
  context_.log.Info(
      "event=peer_lane_closed tenant={} job=\"{}\" rack={} core={} lane=\"{}\" reason=\"{}\"",
      job.account.tenant, job.name(), rack, core.value, place.description, DescribePeerLoss(event));
  place.connection.reset();
}

void PeerLanes::FailOverPeerFault(Job& job, CoreIndex core, const Event& event) {
  PHUB_ON_CONTROL();
  const RackIndex rack = event.source.rack();
  const std::string who = context_.options.DescribeRack(rack);
  const std::string lane = fmt::format("lane to core {}", core.value);
  std::string what;
  const char* code = ToString(event.code);
  switch (event.code) {
    case FaultCode::kLaneLost:
      code = "rack_lost";
      what = fmt::format("the daemon of {} or the link to it probably failed: its {} was lost ({})",
                         who, lane, DescribePeerLoss(event));
      break;
    case FaultCode::kProtocol:
      what = fmt::format("the daemon of {} sent invalid data on its {} ({})", who, lane,
                         DescribePeerLoss(event));
      break;
    default:
      what = fmt::format("the daemon of {} sent data that does not fit the job's plan", who);
      break;
  }
  if (HasKey(job, event.key)) {
    what +=
        fmt::format("; key {} iteration {}", DescribeKey(job, event.key), event.iteration.value);
  }
  v1::Fault fault = ending_.MakeFault(job, code, what);
  RackRun& run = *job.rack_run;
  if (event.code == FaultCode::kLaneLost) {
    const PeerLanePlace& place = run.racks[rack.value].lanes[core.value];
    const LaneTransport* const lost =
        FindTransportOf(context_.options.lane_transports, place.description);
    if (event.error != transport::TransportError::kPeerClosed && lost != nullptr &&
        lost->peers != LaneTransport::Peers::kNever) {
      known_.Avoid(rack, lost->name, context_.clock.Now() + kAvoidAfterLoss);
    }
    // Either the daemon died, or the job has ended there. If the job has ended, the loss of the
    // lane has overtaken the reason or the last message of a job that ended normally. If only that
    // message is missing, nobody waits, and a control plane that is stuck may send it late.
    const DurationNs timeout = context_.options.liveness_timeout;
    const DurationNs patience = run.protocol.AllLeftBut(rack)
                                    ? RackLiveness::kLongTimeouts * timeout
                                : run.protocol.left() ? timeout
                                                      : timeout / 2;
    return PutOff(run, rack, std::move(fault), context_.clock.Now() + patience);
  }
  context_.counters.Add(ControlCounter::peer_faults);
  ending_.Fail(job, std::move(fault));
}

}  // namespace phub::server
