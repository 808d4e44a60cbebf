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

// Policy wait: attempts to open a lane that breaks while it is being opened.
constexpr int kOpenAttemptsMax = 4;
constexpr DurationNs kPauseBetweenAttempts = 50 * kMillisecond;

// True if another transport is worth a try: the daemon cannot be reached over this one, does not
// support it, or a best-effort transport ran out of resources or time. Other errors would repeat.
bool MayGoAnotherWay(const LaneWay& way, const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsUnimplemented(status) ||
         (way.provider->best_effort &&
          (absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status)));
}

// True if another device of this host may succeed. kUnimplemented counts only if a device was
// tried: otherwise no device of this host supports the transport.
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
  // A lane that has used this transport must keep it.
  if (way.provider->best_effort && lane_ways_[lane] == nullptr && losses_[link.position].given_up)
    return absl::UnimplementedError(
        "it was given up after other lanes to this daemon failed or took too long");
  auto dialled = way.lanes->Dial(target, hello, timeout, attempt.number, nonce_used);
  if (!dialled.ok()) return dialled.status();
  return Dialled{&way, std::move(dialled->connection), std::move(dialled->reason)};
}

absl::StatusOr<RackLanes::Dialled> RackLanes::Dial(const DaemonLink& link, std::uint32_t lane,
                                                   wire::LaneHello hello, DurationNs timeout) {
  const TimeNs begun = clock_.Now();
  const TimeNs deadline = begun + timeout;
  const auto left = [&] {  // in whole milliseconds, as printed in errors
    const DurationNs until = std::max<DurationNs>(1, deadline - clock_.Now());
    return (until + kMillisecond - 1) / kMillisecond * kMillisecond;
  };
  const std::vector<Attempt> attempts = AttemptsFor(lane);
  const bool insists = attempts.front().way == attempts.back().way;
  std::string before;       // why the better transports failed
  bool nonce_used = false;  // the nonce may have been sent
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    // A nonce sent over one transport may have been read there in plaintext. So the next transport
    // needs a fresh nonce, from which its key is derived.
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
      const std::string wish = lane_ways_[lane] != nullptr ? "same as before" : "requested";
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
                       fmt::format("{} was requested, but {}", way->provider->spoken_name, all))
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

// Each lane receives a nonce that is valid once. New nonces invalidate earlier ones.
absl::StatusOr<RackLanes::Hellos> RackLanes::AskForLanes(const DaemonLink& link,
                                                         std::span<const std::uint32_t> lanes,
                                                         DurationNs timeout) const {
  const TimeNs asked = clock_.Now();
  v1::OpenLanesRequest request;
  request.set_session_id(link.joined.session_id());
  for (const std::uint32_t lane : lanes)
    request.add_cores(link.joined.cores(static_cast<int>(lane - link.first_lane)).core());
  for (const std::uint32_t lane : lanes) {
    if (!settings_.sum_endpoints.empty()) request.add_sum_endpoints(settings_.sum_endpoints[lane]);
  }
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
      return absl::InternalError(fmt::format("the daemon granted no lane to core {}", core));
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
  std::size_t first = 0;  // index in `lanes` of the first hello
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
    // An interrupted TLS handshake gives the same error as an expired nonce. Each attempt uses a
    // fresh nonce, so retry.
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
