#include "server/control/lanes/lanes.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/control/lanes/in_rack.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

// Lanes of one (rank, core) that a newer one has replaced and that the core loop has not closed, or
// whose end control has not noticed. A worker that reconnects faster is refused.
constexpr std::size_t kLanesReplacedMax = 8;

}  // namespace

// Each (rank, core) has one valid nonce at a time. A newer nonce replaces it, so the number of
// nonces is bounded.
void Lanes::OpenLanes(const v1::OpenLanesRequest& request, Answer<v1::OpenLanesResponse> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Seating> seat = sessions_.FindCommitted(request.session_id());
  if (!seat.ok()) return answer(seat.status(), {});
  Member& member = seat->job->members[seat->rank.value];
  std::vector<std::uint32_t> cores(request.cores().begin(), request.cores().end());
  if (cores.empty()) {
    for (std::size_t core = 0; core < context_.cores.size(); ++core)
      cores.push_back(CoreAt(core).value);
  }
  if (cores.size() > context_.cores.size()) {
    return answer(absl::InvalidArgumentError(fmt::format(
                      "job {}: the worker requested lanes to {} cores, but this daemon has {}",
                      seat->job->name(), cores.size(), context_.cores.size())),
                  {});
  }
  for (const std::uint32_t core : cores) {
    if (core < context_.cores.size()) continue;
    return answer(absl::InvalidArgumentError(fmt::format(
                      "job {}: core {} does not exist; this daemon has {} cores, numbered from 0",
                      seat->job->name(), core, context_.cores.size())),
                  {});
  }
  v1::OpenLanesResponse response;
  response.set_valid_for_ns(context_.options.nonce_lifetime);
  for (std::size_t i = 0; i < cores.size(); ++i) {
    const std::uint32_t core = cores[i];
    const bool given = i < static_cast<std::size_t>(request.sum_endpoints_size());
    sums_.NoteEndpoint(*seat->job, seat->rank, CoreIndex{core},
                       given ? request.sum_endpoints(static_cast<int>(i)) : std::string());
    LanePlace& place = member.lanes[core];
    const wire::Nonce& nonce =
        place.nonce.Grant(context_.random, context_.clock.Now() + context_.options.nonce_lifetime);
    v1::LaneGrant& grant = *response.add_grants();
    grant.set_core(core);
    grant.set_nonce(nonce.data(), nonce.size());
    context_.counters.Add(ControlCounter::lanes_granted);
  }
  answer(absl::OkStatus(), response);
}

LanePlace* Lanes::FindGranted(const wire::LaneHello& hello, wire::LaneRefusal& refusal) {
  Job* job = jobs_.FindIncarnation(hello.incarnation);
  if (job == nullptr || !job->running() || hello.membership_epoch != job->config.membership_epoch) {
    refusal = wire::LaneRefusal::kJob;
    return nullptr;
  }
  refusal = wire::LaneRefusal::kNonce;
  if (hello.rank.value >= job->members.size() || hello.core.value >= context_.cores.size())
    return nullptr;
  Member& member = job->members[hello.rank.value];
  LanePlace& place = member.lanes[hello.core.value];
  const bool good = place.nonce.IsGood(context_.clock.Now()) && member.present();
  return good ? &place : nullptr;
}

std::optional<wire::Nonce> Lanes::FindNonce(const wire::LaneHello& given) {
  PHUB_ON_CONTROL();
  if (LaneOwner::OfHello(given.rank).is_rack()) return peer_lanes_.FindNonce(given);
  const wire::LaneHello hello = InRack(jobs_, given);
  wire::LaneRefusal refusal{};
  const LanePlace* const place = FindGranted(hello, refusal);
  return place == nullptr ? std::nullopt : std::optional(place->nonce.value());
}

wire::LaneRefusal Lanes::CheckLane(const wire::LaneHello& hello, std::optional<PeerProcess> process,
                                   bool encrypted) {
  wire::LaneRefusal refusal{};
  LanePlace* const place = FindGranted(hello, refusal);
  if (place == nullptr) return refusal;
  if (!place->nonce.Take(hello.nonce)) return wire::LaneRefusal::kNonce;
  Job& job = *jobs_.FindIncarnation(hello.incarnation);
  if (process && !rank_memories_.IsProcessOf(job, hello.rank, *process))
    return wire::LaneRefusal::kNonce;
  // Shared memory does not leave the host, so such a lane needs no encryption.
  if (!process && !encrypted && context_.ledger.RequiresEncryption(job.account.tenant)) {
    return wire::LaneRefusal::kEncryption;
  }
  if (place->replaced.size() >= kLanesReplacedMax ||
      !context_.cores[hello.core.value].HasLaneRoom()) {
    return wire::LaneRefusal::kBusy;
  }
  const bool held = place->connection != nullptr;
  return held && job.settings.on_loss == LossPolicy::kFail ? wire::LaneRefusal::kBusy
                                                           : wire::LaneRefusal::kNone;
}

wire::LaneRefusal Lanes::AdmitLane(const wire::LaneHello& hello, std::optional<PeerProcess> process,
                                   bool encrypted) {
  PHUB_ON_CONTROL();
  const wire::LaneRefusal refusal = LaneOwner::OfHello(hello.rank).is_rack()
                                        ? peer_lanes_.Check(hello, encrypted)
                                        : CheckLane(InRack(jobs_, hello), process, encrypted);
  switch (refusal) {
    case wire::LaneRefusal::kNone: context_.counters.Add(ControlCounter::lanes_admitted); break;
    case wire::LaneRefusal::kJob: context_.counters.Add(ControlCounter::lanes_refused_job); break;
    case wire::LaneRefusal::kBusy: context_.counters.Add(ControlCounter::lanes_refused_busy); break;
    case wire::LaneRefusal::kEncryption:
      context_.counters.Add(ControlCounter::lanes_refused_encryption);
      break;
    default: context_.counters.Add(ControlCounter::lanes_refused_nonce); break;
  }
  return refusal;
}

void Lanes::AttachLane(const wire::LaneHello& hello,
                       std::unique_ptr<transport::Connection> connection,
                       std::uint8_t transport_index, std::string_view transport_name,
                       std::string_view peer_address) {
  PHUB_ON_CONTROL();
  std::string description = fmt::format("{} {}", transport_name, peer_address);
  if (LaneOwner::OfHello(hello.rank).is_rack()) {
    return peer_lanes_.Attach(hello, std::move(connection), transport_index,
                              std::move(description));
  }
  AttachWorker(InRack(jobs_, hello), std::move(connection), transport_index,
               std::move(description));
}

void Lanes::AttachWorker(const wire::LaneHello& hello,
                         std::unique_ptr<transport::Connection> connection,
                         std::uint8_t transport_index, std::string description) {
  PHUB_CHECK(connection != nullptr);
  Job* job = jobs_.FindIncarnation(hello.incarnation);
  const bool has_place =
      job != nullptr && job->running() && hello.rank.value < job->members.size() &&
      hello.core.value < context_.cores.size() && job->members[hello.rank.value].present();
  if (!has_place) {
    context_.counters.Add(ControlCounter::lanes_dropped);
    return;
  }
  Member& member = job->members[hello.rank.value];
  LanePlace& place = member.lanes[hello.core.value];
  // Setting up a lane can take a while. If the worker requested another one since, drop this one.
  if (!place.nonce.IsLast(hello.nonce) || !context_.cores[hello.core.value].HasLaneRoom()) {
    context_.counters.Add(ControlCounter::lanes_dropped);
    return;
  }
  if (place.connection != nullptr) {  // the worker reconnected before the old lane was lost
    place.replaced.push_back(std::move(place.connection));
  }
  place.connection = std::move(connection);
  place.staging_in_use.emplace_back(place.connection.get(), place.staging);
  place.description = std::move(description);
  place.lost = false;
  const auto is_open = [](const LanePlace& each) { return each.connection != nullptr; };
  if (std::ranges::all_of(member.lanes, is_open)) member.opens_lanes = false;
  context_.log.Info("event=lane_attached tenant={} job=\"{}\" rank={} core={} lane=\"{}\"",
                    job->account.tenant, job->name(), hello.rank.value, hello.core.value,
                    place.description);
  context_.cores[hello.core.value].Send({.kind = Command::Kind::kAttachLane,
                                         .transport_index = transport_index,
                                         .owner = hello.rank,
                                         .shard = job->shards[hello.core.value].get(),
                                         .connection = place.connection.get(),
                                         .staging = place.staging->data()});
  presence_.CheckPresence(*job, hello.rank);
}

void Lanes::HandleLaneClosed(Job& job, CoreIndex core, const Event& event) {
  PHUB_ON_CONTROL();
  const Rank rank = event.source.rank();
  PHUB_CHECK(rank.value < job.members.size(), "rank={}", rank.value);
  LanePlace& place = job.members[rank.value].lanes[core.value];
  place.loss = DescribeLoss(event);
  if (event.refused) context_.counters.Add(ControlCounter::lanes_refused_shortage);
  if (place.connection.get() == event.connection) {
    place.connection.reset();
    place.lost = true;
  } else {
    const std::size_t erased = std::erase_if(
        place.replaced, [&](const auto& old) { return old.get() == event.connection; });
    PHUB_CHECK(erased == 1, "job={} rank={} core={}", job.name(), rank.value, core.value);
  }
  std::erase_if(place.staging_in_use,
                [&](const auto& in_use) { return in_use.first == event.connection; });
  context_.log.Info(
      "event=lane_closed tenant={} job=\"{}\" rank={} core={} lane=\"{}\" reason=\"{}\"",
      job.account.tenant, job.name(), rank.value, core.value, place.description, place.loss);
  presence_.CheckPresence(job, rank);
}

}  // namespace phub::server
