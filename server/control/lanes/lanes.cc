#include <cstring>

#include "common/base/check.h"
#include "common/base/log.h"
#include "server/control/racks/rack_run.h"
#include "server/control/state.h"

namespace phub::server {

// One nonce per (rank, core) is good at a time: a newer one replaces it, so their number is
// bounded.
void Control::State::OpenLanes(const v1::OpenLanesRequest& request,
                               Answer<v1::OpenLanesResponse> answer) {
  const absl::StatusOr<Seating> seat = FindCommitted(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Member& member = seat->job->members[seat->rank.value];
  std::vector<std::uint32_t> cores(request.cores().begin(), request.cores().end());
  if (cores.empty()) {
    for (std::size_t core = 0; core < links.size(); ++core) cores.push_back(CoreAt(core).value);
  }
  if (cores.size() > links.size()) {
    return answer(absl::InvalidArgumentError(
                      fmt::format("job {}: lanes to {} cores were asked for, this daemon has {}",
                                  seat->job->name(), cores.size(), links.size())),
                  {});
  }
  for (const std::uint32_t core : cores) {
    if (core < links.size()) continue;
    return answer(absl::InvalidArgumentError(fmt::format(
                      "job {}: there is no core {}, this daemon has {}; cores count from 0",
                      seat->job->name(), core, links.size())),
                  {});
  }
  v1::OpenLanesResponse response;
  response.set_valid_for_ns(options.nonce_lifetime);
  for (const std::uint32_t core : cores) {
    LanePlace& place = member.lanes[core];
    const wire::Nonce& nonce = place.nonce.Grant(random, clock.Now() + options.nonce_lifetime);
    v1::LaneGrant& grant = *response.add_grants();
    grant.set_core(core);
    grant.set_nonce(nonce.data(), nonce.size());
    counters.Add(ControlCounter::lanes_granted);
  }
  answer(absl::OkStatus(), response);
}

Job* Control::State::FindIncarnation(Incarnation incarnation) {
  for (const auto& job : jobs) {
    if (job->account.incarnation == incarnation) return job.get();
  }
  return nullptr;
}

LanePlace* Control::State::FindGranted(const wire::LaneHello& hello, wire::LaneRefusal& refusal) {
  Job* job = FindIncarnation(hello.incarnation);
  if (job == nullptr || !job->running() || hello.membership_epoch != job->config.membership_epoch) {
    refusal = wire::LaneRefusal::kJob;
    return nullptr;
  }
  refusal = wire::LaneRefusal::kNonce;
  if (hello.rank.value >= job->members.size() || hello.core.value >= links.size()) return nullptr;
  Member& member = job->members[hello.rank.value];
  LanePlace& place = member.lanes[hello.core.value];
  const bool good = place.nonce.IsGood(clock.Now()) && member.present();
  return good ? &place : nullptr;
}

std::optional<wire::Nonce> Control::State::FindNonce(const wire::LaneHello& hello) {
  wire::LaneRefusal refusal{};
  if (LaneOwner::OfHello(hello.rank).is_rack()) {
    const PeerLanePlace* const place = FindGrantedPeer(hello, refusal);
    if (place == nullptr || !place->nonce.IsGood(clock.Now())) return std::nullopt;
    return place->nonce.value();
  }
  const LanePlace* const place = FindGranted(hello, refusal);
  return place == nullptr ? std::nullopt : std::optional(place->nonce.value());
}

wire::LaneRefusal Control::State::CheckLane(const wire::LaneHello& hello,
                                            std::optional<PeerProcess> process, bool encrypted) {
  wire::LaneRefusal refusal{};
  LanePlace* const place = FindGranted(hello, refusal);
  if (place == nullptr) return refusal;
  if (!place->nonce.Take(hello.nonce)) return wire::LaneRefusal::kNonce;
  Job& job = *FindIncarnation(hello.incarnation);
  if (process && !IsProcessOf(job, hello.rank, *process)) return wire::LaneRefusal::kNonce;
  // What is in shared memory does not leave the host.
  if (!process && !encrypted && ledger.RequiresEncryption(job.account.tenant)) {
    return wire::LaneRefusal::kEncryption;
  }
  const bool held = place->connection != nullptr;
  return held && job.settings.on_loss == LossPolicy::kFail ? wire::LaneRefusal::kBusy
                                                           : wire::LaneRefusal::kNone;
}

wire::LaneRefusal Control::State::AdmitLane(const wire::LaneHello& hello,
                                            std::optional<PeerProcess> process, bool encrypted) {
  const wire::LaneRefusal refusal = LaneOwner::OfHello(hello.rank).is_rack()
                                        ? CheckPeerLane(hello, encrypted)
                                        : CheckLane(hello, process, encrypted);
  switch (refusal) {
    case wire::LaneRefusal::kNone: counters.Add(ControlCounter::lanes_admitted); break;
    case wire::LaneRefusal::kJob: counters.Add(ControlCounter::lanes_refused_job); break;
    case wire::LaneRefusal::kBusy: counters.Add(ControlCounter::lanes_refused_busy); break;
    case wire::LaneRefusal::kEncryption:
      counters.Add(ControlCounter::lanes_refused_encryption);
      break;
    default: counters.Add(ControlCounter::lanes_refused_nonce); break;
  }
  return refusal;
}

void Control::State::AttachLane(const wire::LaneHello& hello,
                                std::unique_ptr<transport::Connection> connection,
                                std::uint8_t transport_index, std::string description) {
  PHUB_CHECK(connection != nullptr);
  Job* job = FindIncarnation(hello.incarnation);
  const bool has_place =
      job != nullptr && job->running() && hello.rank.value < job->members.size() &&
      hello.core.value < links.size() && job->members[hello.rank.value].present();
  if (!has_place) {
    counters.Add(ControlCounter::lanes_dropped);
    return;
  }
  LanePlace& place = job->members[hello.rank.value].lanes[hello.core.value];
  // Some lanes take a while to be made. Who asked for another meanwhile has given this one up.
  if (!place.nonce.IsLast(hello.nonce)) {
    counters.Add(ControlCounter::lanes_dropped);
    return;
  }
  if (place.connection != nullptr) {  // the worker came back before its old lane was seen lost
    place.replaced.push_back(std::move(place.connection));
  }
  place.connection = std::move(connection);
  place.staging_in_use.emplace_back(place.connection.get(), place.staging);
  place.description = std::move(description);
  place.lost = false;
  LogInfo("event=lane_attached tenant={} job=\"{}\" rank={} core={} lane=\"{}\"",
          job->account.tenant, job->name(), hello.rank.value, hello.core.value, place.description);
  links[hello.core.value].Send({.kind = Command::Kind::kAttachLane,
                                .transport_index = transport_index,
                                .owner = hello.rank,
                                .shard = job->shards[hello.core.value].get(),
                                .connection = place.connection.get(),
                                .staging = place.staging->data()});
  CheckPresence(*job, hello.rank);
}

}  // namespace phub::server
