#include "client/session/rack_lanes.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/session/fault_text.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/transport/shm/shm_dial.h"
#include "common/transport/tcp/tcp_dial.h"
#include "common/transport/tls/tls_dial.h"
#include "common/transport/verbs/verbs_dial.h"

namespace phub::client {
namespace {

// Policy wait: a lane that breaks while it is being opened is opened again, as later ones are.
constexpr int kOpenAttemptsMax = 4;
constexpr DurationNs kPauseBetweenAttempts = 50 * kMillisecond;

// As it is logged.
const char* ShortName(std::uint8_t index) {
  switch (index) {
    case kShmTransportIndex: return "shm";
    case kVerbsTransportIndex: return "verbs";
    default: return "tcp";
  }
}
// As it is said to people.
const char* TransportName(std::uint8_t index) {
  switch (index) {
    case kShmTransportIndex: return "shared memory";
    case kVerbsTransportIndex: return "verbs";
    default: return "tcp";
  }
}

// Whether another way is worth a try: nobody is there, or not by this way; a device, or the
// daemon's, has no room left, or takes too long. What else refuses here would refuse there too.
bool MayGoAnotherWay(std::uint8_t way, const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsUnimplemented(status) ||
         (way == kVerbsTransportIndex &&
          (absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status)));
}

// Whether another device of this host may do where one does not: not if it was none of theirs.
bool MayUseAnotherDevice(const absl::Status& status, bool tried) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         (tried && absl::IsUnimplemented(status));
}

}  // namespace

RackLanes::RackLanes(RackLanesSettings settings, const DaemonLinks& links, CallWaiter& waiter)
    : settings_(std::move(settings)),
      links_(links),
      waiter_(waiter),
      connections_(LaneCount(links)),
      transport_indices_(LaneCount(links)),
      shared_(links.size()),
      verbs_lost_(links.size()),
      verbs_given_up_(links.size()) {}

std::string RackLanes::WhyNotShared(const DaemonLink& link) const {
  const v1::SharedMemoryEndpoint& shared = link.joined.shared_memory();
  if (shared.name().empty()) return "the daemon offers no shared memory";
  if (settings_.boot_id.empty() || shared.boot_id() != settings_.boot_id)
    return "the daemon is on another host";
  return {};
}

std::vector<RackLanes::Way> RackLanes::WaysOf(std::uint32_t lane) const {
  std::vector<std::uint8_t> indices;
  if (transport_indices_[lane]) {
    indices = {*transport_indices_[lane]};
  } else {
    switch (settings_.transport) {
      case TransportChoice::kTcp: indices = {kTcpTransportIndex}; break;
      case TransportChoice::kSharedMemory: indices = {kShmTransportIndex}; break;
      case TransportChoice::kVerbs: indices = {kVerbsTransportIndex}; break;
      case TransportChoice::kAuto:
        indices = {kShmTransportIndex, kVerbsTransportIndex, kTcpTransportIndex};
    }
  }
  std::vector<Way> ways;
  for (const std::uint8_t index : indices) {
    const bool by_device = index == kVerbsTransportIndex && settings_.verbs != nullptr;
    const std::uint32_t attempts = by_device ? settings_.verbs->device_count() : 1;
    for (std::uint32_t i = 0; i < std::max(attempts, 1u); ++i) ways.push_back({index, i});
  }
  return ways;
}

absl::StatusOr<RackLanes::Dialled> RackLanes::DialBy(const Way& way, const DaemonLink& link,
                                                     std::uint32_t lane,
                                                     const wire::LaneHello& hello,
                                                     DurationNs timeout, bool& said) const {
  const v1::CoreEndpoint& core = link.joined.cores(static_cast<int>(lane - link.first_lane));
  const std::string host = core.host().empty() ? link.endpoint.host : core.host();
  const auto port = static_cast<std::uint16_t>(core.port());
  Dialled dialled;
  dialled.transport_index = way.transport_index;
  absl::StatusOr<std::unique_ptr<transport::Connection>> connection;
  if (way.transport_index == kShmTransportIndex) {
    if (std::string why_not = WhyNotShared(link); !why_not.empty())
      return absl::UnimplementedError(why_not);
    dialled.reason = "same host";
    said = true;
    connection =
        transport::DialShm(link.joined.shared_memory().name(), hello, timeout, link.regions);
  } else if (way.transport_index == kVerbsTransportIndex) {
    if (link.joined.encryption_required())
      return absl::UnimplementedError("the tenant requires encryption, and RDMA has none");
    if (settings_.verbs == nullptr) return absl::UnimplementedError("not asked for");
    // A lane that had it once has no other way.
    if (!transport_indices_[lane] && verbs_given_up_[link.position])
      return absl::UnimplementedError(
          "other lanes to this daemon were tried for too long, and failed");
    absl::StatusOr<VerbsSide::Way> taken = settings_.verbs->WayTo(host, core.core(), way.attempt);
    if (absl::IsNotFound(taken.status())) return absl::UnimplementedError(taken.status().message());
    if (!taken.ok()) return taken.status();
    dialled.reason = std::move(taken->reason);
    SystemRandom random;
    said = true;
    connection = transport::DialVerbs(host, port, hello, timeout, std::move(taken->queue),
                                      std::move(taken->domain), random);
  } else if (link.joined.tls_lanes()) {
    dialled.reason = "TLS 1.3";
    connection = transport::DialTls(host, port, hello, timeout);
  } else if (link.joined.encryption_required()) {
    return absl::FailedPreconditionError(
        "the tenant requires encryption, and the daemon's lanes over tcp have none (its setting "
        "data_tls)");
  } else {
    connection = transport::DialTcp(host, port, hello, timeout);
  }
  if (!connection.ok()) return connection.status();
  dialled.connection = *std::move(connection);
  return dialled;
}

absl::StatusOr<RackLanes::Dialled> RackLanes::Dial(const DaemonLink& link, std::uint32_t lane,
                                                   wire::LaneHello hello, DurationNs timeout) {
  const TimeNs begun = clock_.Now();
  const TimeNs deadline = begun + timeout;
  const auto left = [&] {  // in whole milliseconds, as errors tell it
    const DurationNs until = std::max<DurationNs>(1, deadline - clock_.Now());
    return (until + kMillisecond - 1) / kMillisecond * kMillisecond;
  };
  const std::vector<Way> ways = WaysOf(lane);
  const bool insists = ways.front().transport_index == ways.back().transport_index;
  std::string before;  // why the better ways did not do
  bool said = false;   // somebody may have been told the nonce
  for (std::size_t i = 0; i < ways.size(); ++i) {
    // What went over one way may have been read there, in the clear. So it is good for that way
    // only: the next one's key is made from a nonce that nobody has seen.
    if (std::exchange(said, false)) {
      auto fresh = AskForLanes(link, {&lane, 1}, left());
      if (!fresh.ok()) return fresh.status();
      hello = fresh->hellos.front();
    }
    const std::uint8_t index = ways[i].transport_index;
    const bool has_half = index == kVerbsTransportIndex && !insists;
    absl::StatusOr<Dialled> dialled =
        DialBy(ways[i], link, lane, hello, has_half ? left() / 2 : left(), said);
    if (dialled.ok()) {
      const std::string wish = transport_indices_[lane] ? "as before" : "asked for";
      const std::string how = insists ? wish : dialled->reason;
      dialled->reason =
          fmt::format("{}{}{}", how, how.empty() || before.empty() ? "" : "; ", before);
      return dialled;
    }
    const absl::Status& status = dialled.status();
    const std::string_view why(status.message().data(), status.message().size());
    while (i + 1 < ways.size() && ways[i + 1].transport_index == index &&
           !MayUseAnotherDevice(status, said)) {
      ++i;
    }
    const bool last = i + 1 == ways.size();
    if (last || !MayGoAnotherWay(index, status)) {
      const std::string all =
          before.empty() ? std::string(why) : fmt::format("{} ({})", why, before);
      return insists && last && absl::IsUnimplemented(status)
                 ? absl::FailedPreconditionError(
                       fmt::format("{} was asked for, but {}", TransportName(index), all))
                 : absl::Status(status.code(), all);
    }
    if (has_half && ways[i + 1].transport_index != index) {
      verbs_lost_[link.position] += clock_.Now() - begun;
      if (absl::IsDeadlineExceeded(status) || verbs_lost_[link.position] >= timeout / 2)
        verbs_given_up_[link.position] = true;
    }
    before += fmt::format("{}{}: {}", before.empty() ? "" : "; ", TransportName(index), why);
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
            ShortName(dialled->transport_index), dialled->reason);
    connections_[lane] = std::move(dialled->connection);
    if (!transport_indices_[lane]) transport_indices_[lane] = dialled->transport_index;
    opened(lane, dialled->transport_index, *connections_[lane]);
  }
  return absl::OkStatus();
}

std::string RackLanes::Transports() const {
  std::string names;
  for (const std::uint8_t index : {kShmTransportIndex, kTcpTransportIndex, kVerbsTransportIndex}) {
    if (std::find(transport_indices_.begin(), transport_indices_.end(), index) ==
        transport_indices_.end())
      continue;
    names += fmt::format("{}{}", names.empty() ? "" : ",", ShortName(index));
  }
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
      return transport_indices_[lane] == kShmTransportIndex;
    });
  }
  return Status();
}

}  // namespace phub::client
