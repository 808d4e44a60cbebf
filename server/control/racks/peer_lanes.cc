// Lanes between core loops of different racks: only between racks that share an edge of the job's
// plan. The rack with the lower number grants them, the other one dials: over verbs if both can and
// may, else over tcp.
#include <algorithm>

#include "common/base/log.h"
#include "server/control/racks/rack_run.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

bool IsNeighbor(const RackRun& run, std::uint32_t rack) {
  return (run.plan.neighbors >> rack & 1) != 0;
}

// Empty: lanes to other racks may be over verbs, as far as this daemon has a say.
std::string_view WhyNoVerbs(const ControlOptions& options, bool encryption_required) {
  if (options.peer_verbs_lane_bytes == 0) return options.no_peer_verbs_reason;
  if (encryption_required) return "the tenant requires encryption, and RDMA has none";
  return {};
}

std::string DescribePeerLoss(const Event& event) {
  return DescribeLoss(event.error, event.protocol_error, event.connection, "the other daemon");
}

wire::Nonce NonceOf(const std::string& bytes) {
  wire::Nonce nonce;
  std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), nonce.size(), nonce.begin());
  return nonce;
}

// Whether every grant has what it takes.
bool IsWhole(const v1::PeerConnect& connect, std::size_t core_count) {
  const auto is_nonce = [](const std::string& bytes) {
    return bytes.size() == sizeof(wire::Nonce);
  };
  return connect.grants_size() == static_cast<int>(core_count) &&
         connect.cores_size() == connect.grants_size() &&
         (connect.verbs_nonces().empty() || connect.verbs_nonces_size() == connect.grants_size()) &&
         std::ranges::all_of(connect.verbs_nonces(), is_nonce) &&
         std::ranges::all_of(connect.grants(), [&](const v1::LaneGrant& grant) {
           return grant.core() < core_count && is_nonce(grant.nonce());
         });
}

// Queue pairs can be connected over ways that carry nothing, or nothing of full length: what is
// lost by that is one job, and the next ones go by tcp for a while.
constexpr DurationNs kNoVerbsAfterLoss = 600 * kSecond;

// The job fails by it then, unless it has ended, or failed by what another rack says.
void PutOff(RackRun& run, RackIndex rack, v1::Fault fault, TimeNs due) {
  if (!run.put_off) run.put_off = {rack, std::move(fault), due};
}

}  // namespace

void Control::State::GrantPeerLanes(Job& job) {
  RackRun& run = *job.rack_run;
  // Nonces that are out stay good: whoever was told of them dials by now.
  if (std::exchange(run.granted, true)) return;
  const bool verbs = WhyNoVerbs(options, ledger.RequiresEncryption(job.account.tenant)).empty();
  const TimeNs expires = clock.Now() + options.nonce_lifetime;
  for (std::uint32_t rack = options.rack_index + 1; rack < run.racks.size(); ++rack) {
    if (!IsNeighbor(run, rack)) continue;
    v1::PeerMessage message;
    v1::PeerConnect& connect = *message.mutable_connect();
    connect.set_tls_lanes(options.tls_lanes);
    connect.set_verbs_only(options.peer_verbs_only);
    for (std::size_t core = 0; core < links.size(); ++core) {
      PeerLanePlace& place = run.racks[rack].lanes[core];
      if (verbs) {
        const wire::Nonce& nonce = place.verbs_nonce.Grant(random, expires);
        connect.add_verbs_nonces(nonce.data(), nonce.size());
      }
      const wire::Nonce& nonce = place.nonce.Grant(random, expires);
      counters.Add(ControlCounter::lanes_granted);
      v1::LaneGrant& grant = *connect.add_grants();
      grant.set_core(static_cast<std::uint32_t>(core));
      grant.set_nonce(nonce.data(), nonce.size());
      v1::CoreEndpoint& endpoint = *connect.add_cores();
      endpoint.set_core(static_cast<std::uint32_t>(core));
      endpoint.set_host(endpoints[core].host);
      endpoint.set_port(endpoints[core].port);
    }
    SendToRack(RackIndex{rack}, job.account.incarnation, std::move(message));
  }
}

// Empty, from rack 0: every rack has the job, so lanes may be granted. Else: dial these.
void Control::State::HandleConnect(Job& job, RackIndex from, const v1::PeerConnect& connect) {
  RackRun& run = *job.rack_run;
  if (run.state == RackRun::State::kStanding) return;
  if (connect.grants().empty()) {
    if (from.value == 0) GrantPeerLanes(job);
    return;
  }
  if (!IsWhole(connect, links.size()) || from.value >= options.rack_index ||
      std::exchange(run.racks[from.value].dialled, true)) {
    counters.Add(ControlCounter::peers_refused_place);
    return;
  }
  if (!connect.tls_lanes() && ledger.RequiresEncryption(job.account.tenant)) {
    counters.Add(ControlCounter::lanes_refused_encryption);
    return Fail(job, MakeFault(job, "rack_refused",
                               fmt::format("tenant {} requires encrypted lanes, and those that {} "
                                           "grants are not: data_tls is off there",
                                           job.account.tenant, DescribeRackBriefly(from))));
  }
  std::string no_verbs(WhyNoVerbs(options, ledger.RequiresEncryption(job.account.tenant)));
  if (no_verbs.empty() && connect.verbs_nonces().empty()) {
    no_verbs = fmt::format("{} grants none", DescribeRackBriefly(from));
  }
  const bool verbs_only = options.peer_verbs_only || connect.verbs_only();
  if (no_verbs.empty() && !verbs_only && clock.Now() < racks.known[from.value].no_verbs_until) {
    no_verbs = fmt::format("one to {} over verbs was lost, less than {} ago",
                           DescribeRackBriefly(from), FormatAge(kNoVerbsAfterLoss));
  }
  if (verbs_only && !no_verbs.empty()) {
    return Fail(job, MakeFault(job, "rack_refused",
                               fmt::format("lanes between {} and {} have to be over RDMA "
                                           "(peer_transport = verbs), and cannot: {}",
                                           DescribeRackBriefly(RackIndex{options.rack_index}),
                                           DescribeRackBriefly(from), no_verbs)));
  }
  LogInfo("event=peer_lanes_dialled tenant={} job=\"{}\" rack={} count={} first={} reason=\"{}\"",
          job.account.tenant, job.name(), from.value, connect.grants_size(),
          no_verbs.empty() ? "verbs" : "tcp", no_verbs.empty() ? "both have it" : no_verbs);
  for (int i = 0; i < connect.grants_size(); ++i) {
    const v1::LaneGrant& grant = connect.grants(i);
    PeerLaneCall call{.to = from,
                      .host = connect.cores(i).host(),
                      .port = static_cast<std::uint16_t>(connect.cores(i).port()),
                      .hello = {},
                      .tls = connect.tls_lanes(),
                      .verbs_nonce = std::nullopt,
                      .verbs_only = verbs_only};
    call.hello.core = CoreIndex{grant.core()};
    call.hello.rank = LaneOwner::HelloRank(RackIndex{options.rack_index});
    call.hello.incarnation = job.account.incarnation;
    call.hello.membership_epoch = job.config.membership_epoch;
    call.hello.nonce = NonceOf(grant.nonce());
    if (no_verbs.empty()) call.verbs_nonce = NonceOf(connect.verbs_nonces(i));
    racks.network->DialLane(std::move(call));
  }
}

PeerLanePlace* Control::State::FindGrantedPeer(const wire::LaneHello& hello,
                                               wire::LaneRefusal& refusal) {
  const std::uint32_t rack = LaneOwner::OfHello(hello.rank).rack().value;
  Job* job = FindIncarnation(hello.incarnation);
  if (job == nullptr || !job->running() || hello.membership_epoch != job->config.membership_epoch) {
    refusal = wire::LaneRefusal::kJob;
    return nullptr;
  }
  refusal = wire::LaneRefusal::kNonce;
  if (job->rack_run == nullptr) return nullptr;
  RackRun& run = *job->rack_run;
  if (rack >= run.racks.size() || hello.core.value >= links.size()) return nullptr;
  PeerLanePlace& place = run.racks[rack].lanes[hello.core.value];
  const bool good = place.nonce.IsGood(clock.Now()) || place.verbs_nonce.IsGood(clock.Now());
  return good ? &place : nullptr;
}

wire::LaneRefusal Control::State::CheckPeerLane(const wire::LaneHello& hello, bool encrypted) {
  wire::LaneRefusal refusal{};
  PeerLanePlace* const place = FindGrantedPeer(hello, refusal);
  if (place == nullptr) return refusal;
  // What is good over verbs only has been seen by whoever reads the network: inside TLS it is none.
  const auto takes = [&](GrantedNonce& nonce) {
    return nonce.IsGood(clock.Now()) && nonce.Take(hello.nonce);
  };
  if (!takes(place->nonce) && (encrypted || !takes(place->verbs_nonce))) {
    return wire::LaneRefusal::kNonce;
  }
  const Job& job = *FindIncarnation(hello.incarnation);
  if (!encrypted && ledger.RequiresEncryption(job.account.tenant)) {
    return wire::LaneRefusal::kEncryption;
  }
  return place->connection != nullptr ? wire::LaneRefusal::kBusy : wire::LaneRefusal::kNone;
}

// While it has not and the job runs, a lane is worth dialling.
bool Control::State::LacksPeerLane(Incarnation incarnation, RackIndex rack, CoreIndex core) {
  const Job* const job = FindIncarnation(incarnation);
  return job != nullptr && job->running() && job->rack_run != nullptr &&
         rack.value < job->rack_run->racks.size() && core.value < links.size() &&
         job->rack_run->racks[rack.value].lanes[core.value].connection == nullptr;
}

void Control::State::AttachPeerLane(Incarnation incarnation, RackIndex rack, CoreIndex core,
                                    std::unique_ptr<transport::Connection> connection,
                                    std::uint8_t transport_index, std::string description) {
  Job* job = FindIncarnation(incarnation);
  if (!LacksPeerLane(incarnation, rack, core)) {
    counters.Add(ControlCounter::lanes_dropped);
    return;
  }
  PeerLanePlace& place = job->rack_run->racks[rack.value].lanes[core.value];
  place.connection = std::move(connection);
  place.description = std::move(description);
  LogInfo("event=peer_lane_attached tenant={} job=\"{}\" rack={} core={} lane=\"{}\"",
          job->account.tenant, job->name(), rack.value, core.value, place.description);
  links[core.value].Send({.kind = Command::Kind::kAttachLane,
                          .transport_index = transport_index,
                          .owner = rack,
                          .shard = job->shards[core.value].get(),
                          .connection = place.connection.get()});
  AdvanceRackRun(*job);
}

void Control::State::PeerLaneFailed(Incarnation incarnation, RackIndex rack, CoreIndex core,
                                    const absl::Status& why) {
  Job* job = FindIncarnation(incarnation);
  if (job == nullptr || !job->running() || job->rack_run == nullptr) return;
  // A rack that has ended the job refuses; why it has, it says by another connection.
  PutOff(*job->rack_run, rack,
         MakeFault(*job, "rack_unreachable",
                   fmt::format("no lane to core {} of {}: {}", core.value,
                               DescribeRackBriefly(rack), std::string(why.message()))),
         clock.Now() + options.liveness_timeout / 2);
}

// This rack is ready once all its lanes are given to the core loops: a command that comes later is
// executed later, so nothing that a worker does can overtake them.
void Control::State::CheckReady(Job& job) {
  RackRun& run = *job.rack_run;
  for (std::uint32_t rack = 0; rack < run.racks.size() && !run.said_ready; ++rack) {
    if (!IsNeighbor(run, rack)) continue;
    for (const PeerLanePlace& place : run.racks[rack].lanes) {
      if (place.connection == nullptr) return;
    }
  }
  v1::PeerMessage message;
  if (options.rack_index != 0) {
    if (std::exchange(run.said_ready, true)) return;
    message.mutable_ready();
    return SendToRack(RackIndex{0}, job.account.incarnation, std::move(message));
  }
  run.said_ready = run.racks[0].ready = true;
  for (const PeerRack& rack : run.racks) {
    if (!rack.ready) return;
  }
  message.mutable_start();
  SendToRacks(job.account.incarnation, message);
  StandRackRun(job);
}

void Control::State::HandlePeerLaneClosed(Job& job, CoreIndex core, const Event& event) {
  const std::uint32_t rack = event.source.rack().value;
  PeerLanePlace& place = job.rack_run->racks[rack].lanes[core.value];
  PHUB_CHECK(place.connection.get() == event.connection, "job={} rack={}", job.name(), rack);
  LogInfo("event=peer_lane_closed tenant={} job=\"{}\" rack={} core={} lane=\"{}\" reason=\"{}\"",
          job.account.tenant, job.name(), rack, core.value, place.description,
          DescribePeerLoss(event));
  place.connection.reset();
}

void Control::State::FailOverPeerFault(Job& job, CoreIndex core, const Event& event) {
  const RackIndex rack = event.source.rack();
  const std::string who = DescribeRackBriefly(rack);
  const std::string lane = fmt::format("lane to core {}", core.value);
  // An aggregator has none of its own.
  const auto ranks_of = [this](RackIndex each) {
    return (each.value < options.racks_with_ranks() ? "the ranks of " : "ranks behind ") +
           DescribeRackBriefly(each);
  };
  std::string what;
  const char* code = ToString(event.code);
  switch (event.code) {
    case FaultCode::kLaneLost:
      code = "rack_lost";
      what = fmt::format("the daemon of {} is gone, or the link to it: its {} was lost ({})", who,
                         lane, DescribePeerLoss(event));
      break;
    case FaultCode::kProtocol:
      what = fmt::format("the daemon of {} broke the form of its {} ({})", who, lane,
                         DescribePeerLoss(event));
      break;
    case FaultCode::kRoundMismatch:
      what = fmt::format(
          "{} and {} pushed one round with different operation, root or hyper-parameters",
          ranks_of(rack), ranks_of(event.other.rack()));
      break;
    default:
      what = fmt::format("the daemon of {} sent what the job's plan has no place for", who);
      break;
  }
  if (event.key.value < job.keys.size()) {
    what +=
        fmt::format("; key {} iteration {}", DescribeKey(job, event.key), event.iteration.value);
  }
  v1::Fault fault = MakeFault(job, code, what);
  RackRun& run = *job.rack_run;
  if (event.code == FaultCode::kLaneLost) {
    const PeerLanePlace& place = run.racks[rack.value].lanes[core.value];
    if (event.error != transport::TransportError::kPeerClosed &&
        place.description.starts_with("verbs")) {
      racks.known[rack.value].no_verbs_until = clock.Now() + kNoVerbsAfterLoss;
    }
    // Its daemon died; or the job has ended there, and this overtook the reason, or the last word
    // of one that ended in order.
    const DurationNs patience = options.liveness_timeout / (run.said_left ? 1 : 2);
    return PutOff(run, rack, std::move(fault), clock.Now() + patience);
  }
  counters.Add(ControlCounter::peer_faults);
  Fail(job, std::move(fault));
}

}  // namespace phub::server
