#include "client/session/rack_lanes.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "client/session/fault_text.h"
#include "common/base/ids.h"
#include "common/base/log.h"

namespace phub::client {
namespace {

// Policy wait: a lane that breaks while it is being opened is opened again, as later ones are.
constexpr int kOpenAttemptsMax = 4;
constexpr DurationNs kPauseBetweenAttempts = 50 * kMillisecond;

// Whether another way is worth a try: nobody is there, or not by this way; or a best-effort way
// lacks room or time. What else refuses here would refuse there too.
bool MayGoAnotherWay(const LaneWay& way, const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsUnimplemented(status) ||
         (way.provider->best_effort &&
          (absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status)));
}

// Whether another device of this host may do where one does not: not if it was none of theirs.
bool MayUseAnotherDevice(const absl::Status& status, bool tried) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         (tried && absl::IsUnimplemented(status));
}

}  // namespace

RackLanes::RackLanes(RackLanesSettings settings, const LaneWays& ways, const DaemonLinks& links,
                     CallWaiter& waiter)
    : settings_(std::move(settings)),
      ways_(ways),
      links_(links),
      waiter_(waiter),
      connections_(LaneCount(links)),
      lane_ways_(LaneCount(links)),
      shared_(links.size()),
      losses_(links.size()) {}

std::vector<RackLanes::Attempt> RackLanes::AttemptsFor(std::uint32_t lane) const {
  std::vector<Attempt> attempts;
  for (const LaneWay& way : ways_.ways()) {
    if (lane_ways_[lane] != nullptr && lane_ways_[lane] != &way) continue;
    const std::uint32_t count = way.lanes->attempt_count();
    for (std::uint32_t i = 0; i < count; ++i) attempts.push_back({&way, i});
  }
  return attempts;
}

absl::StatusOr<RackLanes::Dialled> RackLanes::DialBy(const Attempt& attempt, const DaemonLink& link,
                                                     std::uint32_t lane,
                                                     const wire::LaneHello& hello,
                                                     DurationNs timeout, bool& nonce_used) const {
  const LaneWay& way = *attempt.way;
  const transport::LaneTarget target = ways_.TargetOf(way, link, lane);
  if (absl::Status offered = way.lanes->Offer(target); !offered.ok()) return offered;
  // A lane that travelled this way once has no other.
  if (way.provider->best_effort && lane_ways_[lane] == nullptr && losses_[link.position].given_up)
    return absl::UnimplementedError(
        "other lanes to this daemon were tried for too long, and failed");
  auto dialled = way.lanes->Dial(target, hello, timeout, attempt.number, nonce_used);
  if (!dialled.ok()) return dialled.status();
  return Dialled{&way, std::move(dialled->connection), std::move(dialled->reason)};
}

absl::StatusOr<RackLanes::Dialled> RackLanes::Dial(const DaemonLink& link, std::uint32_t lane,
                                                   wire::LaneHello hello, DurationNs timeout) {
  const TimeNs begun = clock_.Now();
  const TimeNs deadline = begun + timeout;
  const auto left = [&] {  // in whole milliseconds, as errors tell it
    const DurationNs until = std::max<DurationNs>(1, deadline - clock_.Now());
    return (until + kMillisecond - 1) / kMillisecond * kMillisecond;
  };
  const std::vector<Attempt> attempts = AttemptsFor(lane);
  const bool insists = attempts.front().way == attempts.back().way;
  std::string before;       // why the better ways did not do
  bool nonce_used = false;  // somebody may have been told the nonce
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    // What went over one way may have been read there, in the clear. So it is good for that way
    // only: the next one's key is made from a nonce that nobody has seen.
    if (std::exchange(nonce_used, false)) {
      auto fresh = AskForLanes(link, {&lane, 1}, left());
      if (!fresh.ok()) return fresh.status();
      hello = fresh->hellos.front();
    }
    const LaneWay* const way = attempts[i].way;
    const bool has_half = way->provider->best_effort && !insists;
    absl::StatusOr<Dialled> dialled =
        DialBy(attempts[i], link, lane, hello, has_half ? left() / 2 : left(), nonce_used);
    if (dialled.ok()) {
      const std::string wish = lane_ways_[lane] != nullptr ? "as before" : "asked for";
      const std::string how = insists ? wish : dialled->reason;
      dialled->reason =
          fmt::format("{}{}{}", how, how.empty() || before.empty() ? "" : "; ", before);
      return dialled;
    }
    const absl::Status& status = dialled.status();
    const std::string_view why(status.message().data(), status.message().size());
    while (i + 1 < attempts.size() && attempts[i + 1].way == way &&
           !MayUseAnotherDevice(status, nonce_used)) {
      ++i;
    }
    const bool last = i + 1 == attempts.size();
    if (last || !MayGoAnotherWay(*way, status)) {
      const std::string all =
          before.empty() ? std::string(why) : fmt::format("{} ({})", why, before);
      return insists && last && absl::IsUnimplemented(status)
                 ? absl::FailedPreconditionError(
                       fmt::format("{} was asked for, but {}", way->provider->spoken_name, all))
                 : absl::Status(status.code(), all);
    }
    if (has_half && attempts[i + 1].way != way) {
      Losses& losses = losses_[link.position];
      losses.time += clock_.Now() - begun;
      if (absl::IsDeadlineExceeded(status) || losses.time >= timeout / 2) losses.given_up = true;
    }
    before += fmt::format("{}{}: {}", before.empty() ? "" : "; ", way->provider->spoken_name, why);
  }
  return absl::InternalError("no way");
}

// With a nonce each, which is good once; what was granted before is not any more.
absl::StatusOr<RackLanes::Hellos> RackLanes::AskForLanes(const DaemonLink& link,
                                                         std::span<const std::uint32_t> lanes,
                                                         DurationNs timeout) const {
  const TimeNs asked = clock_.Now();
  v1::OpenLanesRequest request;
  request.set_session_id(link.joined.session_id());
  for (const std::uint32_t lane : lanes)
    request.add_cores(link.joined.cores(static_cast<int>(lane - link.first_lane)).core());
  const auto response = waiter_.Await<v1::OpenLanesResponse>(
      [&](auto done) { link.channel->Call<rpc::OpenLanes>(request, timeout, std::move(done)); });
  if (!response.ok()) return response.status();
  Hellos result;
  if (response->valid_for_ns() > 0) result.old_at = asked + response->valid_for_ns() / 2;
  for (const std::uint32_t core : request.cores()) {
    const auto grant = std::find_if(response->grants().begin(), response->grants().end(),
                                    [&](const v1::LaneGrant& one) { return one.core() == core; });
    wire::LaneHello& hello = result.hellos.emplace_back();
    if (grant == response->grants().end() || grant->nonce().size() != hello.nonce.size())
      return absl::InternalError(fmt::format("it granted no lane to core {}", core));
    std::transform(grant->nonce().begin(), grant->nonce().end(), hello.nonce.begin(),
                   [](char c) { return static_cast<std::byte>(c); });
    hello.core = CoreIndex{core};
    hello.rank = Rank{settings_.rank};
    hello.incarnation = Incarnation{link.joined.incarnation()};
    hello.membership_epoch = MembershipEpoch{link.joined.membership_epoch()};
  }
  return result;
}

absl::Status RackLanes::Open(const DaemonLink& link, std::span<const std::uint32_t> lanes,
                             DurationNs timeout, const Opened& opened) {
  const std::lock_guard lock(opening_);
  Hellos asked;
  std::size_t first = 0;  // lane of these hellos
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (i == 0 || clock_.Now() >= asked.old_at) {
      absl::StatusOr<Hellos> fresh = AskForLanes(link, lanes.subspan(i), timeout);
      if (!fresh.ok()) return fresh.status();
      asked = *std::move(fresh);
      first = i;
    }
    const std::uint32_t lane = lanes[i];
    const wire::LaneHello& hello = asked.hellos[i - first];
    const std::uint32_t core = hello.core.value;
    absl::StatusOr<Dialled> dialled = Dial(link, lane, hello, timeout);
    if (!dialled.ok())
      return absl::Status(
          dialled.status().code(),
          fmt::format("lane to core {}: {}", core, std::string(dialled.status().message())));
    LogInfo("event=lane_opened job={} rank={} daemon={} core={} transport={} reason=\"{}\"",
            settings_.job, settings_.rank, link.endpoint.ToString(), core,
            dialled->way->provider->name, dialled->reason);
    connections_[lane] = std::move(dialled->connection);
    lane_ways_[lane] = dialled->way;
    opened(lane, dialled->way->transport_index, *connections_[lane]);
  }
  return absl::OkStatus();
}

std::string RackLanes::Transports() const {
  std::set<std::string_view> used;
  for (const LaneWay* const way : lane_ways_)
    if (way != nullptr) used.insert(way->provider->name);
  std::string names;
  for (const std::string_view name : used)
    names += fmt::format("{}{}", names.empty() ? "" : ",", name);
  return names;
}

absl::Status RackLanes::OpenPatiently(const DaemonLink& link, std::span<const std::uint32_t> lanes,
                                      DurationNs timeout, const Opened& opened) {
  std::size_t done = 0;
  const Opened count = [&](std::uint32_t lane, std::uint8_t index,
                           transport::Connection& connection) {
    ++done;
    opened(lane, index, connection);
  };
  const TimeNs deadline = clock_.Now() + timeout;
  DurationNs pause = kPauseBetweenAttempts;
  for (int attempt = 1;; ++attempt, pause *= 2) {
    const DurationNs left = std::max<DurationNs>(deadline - clock_.Now(), kMillisecond);
    absl::Status status = Open(link, lanes.subspan(done), left, count);
    // A handshake of TLS that was cut is told like one with a nonce that is not good any more; each
    // attempt has a fresh one.
    const bool passing = IsPassing(status) || absl::IsPermissionDenied(status);
    const bool again = settings_.wait && !status.ok() && passing && attempt < kOpenAttemptsMax &&
                       clock_.Now() + pause < deadline;
    if (!again) return status;
    LogWarning("event=lane_not_opened job={} rank={} daemon={} attempt={} error=\"{}\"",
               settings_.job, settings_.rank, link.endpoint.ToString(), attempt,
               std::string(status.message()));
    if (waiter_.Pause(pause)) return status;
  }
}

Status RackLanes::OpenAll(DurationNs timeout, const Opened& opened) {
  for (const std::unique_ptr<DaemonLink>& link : links_) {
    std::vector<std::uint32_t> lanes(link->lane_count());
    for (std::uint32_t i = 0; i < link->lane_count(); ++i) lanes[i] = link->first_lane + i;
    const absl::Status status = OpenPatiently(*link, lanes, timeout, opened);
    if (!status.ok()) return NamedCallStatus("OpenLanes", link->endpoint, status);
    shared_[link->position] = std::all_of(lanes.begin(), lanes.end(), [this](std::uint32_t lane) {
      return lane_ways_[lane] != nullptr && lane_ways_[lane]->provider->shares_memory;
    });
  }
  return Status();
}

}  // namespace phub::client
