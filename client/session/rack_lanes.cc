#include "client/session/rack_lanes.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/session/fault_text.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/transport/shm/shm_dial.h"
#include "common/transport/tcp/tcp_dial.h"

namespace phub::client {

RackLanes::RackLanes(RackLanesSettings settings, const DaemonLinks& links, CallWaiter& waiter)
    : settings_(std::move(settings)),
      links_(links),
      waiter_(waiter),
      connections_(LaneCount(links)),
      transport_indices_(LaneCount(links)),
      shared_(links.size()) {}

std::string RackLanes::WhyNotShared(const DaemonLink& link) const {
  const v1::SharedMemoryEndpoint& shared = link.joined.shared_memory();
  if (shared.name().empty()) return "the daemon offers no shared memory";
  if (settings_.boot_id.empty() || shared.boot_id() != settings_.boot_id)
    return "the daemon is on another host";
  return {};
}

absl::StatusOr<RackLanes::Dialled> RackLanes::Dial(const DaemonLink& link, std::uint32_t lane,
                                                   const wire::LaneHello& hello,
                                                   DurationNs timeout) const {
  const std::optional<std::uint8_t> before = transport_indices_[lane];
  const bool only_tcp = before.value_or(kShmTransportIndex) == kTcpTransportIndex ||
                        settings_.transport == TransportChoice::kTcp;
  const bool only_shared = before.value_or(kTcpTransportIndex) == kShmTransportIndex ||
                           settings_.transport == TransportChoice::kSharedMemory;
  const char* const wish = before ? "as before" : "asked for";
  Dialled dialled;
  dialled.reason = only_tcp ? wish : WhyNotShared(link);
  if (dialled.reason.empty()) {
    auto connection =
        transport::DialShm(link.joined.shared_memory().name(), hello, timeout, link.regions);
    if (connection.ok()) {
      dialled.connection = *std::move(connection);
      dialled.transport_index = kShmTransportIndex;
      dialled.reason = only_shared ? wish : "same host";
      return dialled;
    }
    // Only if nobody is there is tcp worth a try: what refuses here would refuse there too, and the
    // nonce may be used up.
    if (only_shared || !absl::IsUnavailable(connection.status())) return connection.status();
    dialled.reason = fmt::format("shared memory: {}", std::string(connection.status().message()));
  }
  if (only_shared)
    return absl::FailedPreconditionError(
        fmt::format("shared memory was asked for, but {}", dialled.reason));
  const v1::CoreEndpoint& core = link.joined.cores(static_cast<int>(lane - link.first_lane));
  auto connection = transport::DialTcp(core.host().empty() ? link.endpoint.host : core.host(),
                                       static_cast<std::uint16_t>(core.port()), hello, timeout);
  if (!connection.ok()) return connection.status();
  dialled.connection = *std::move(connection);
  return dialled;
}

absl::Status RackLanes::Open(const DaemonLink& link, std::span<const std::uint32_t> lanes,
                             DurationNs timeout, const Opened& opened) {
  v1::OpenLanesRequest request;
  request.set_session_id(link.joined.session_id());
  for (const std::uint32_t lane : lanes)
    request.add_cores(link.joined.cores(static_cast<int>(lane - link.first_lane)).core());
  const auto response = waiter_.Await<v1::OpenLanesResponse>(
      [&](auto done) { link.channel->OpenLanes(request, timeout, std::move(done)); });
  if (!response.ok()) return response.status();
  for (const std::uint32_t lane : lanes) {
    const v1::CoreEndpoint& core = link.joined.cores(static_cast<int>(lane - link.first_lane));
    const auto grant =
        std::find_if(response->grants().begin(), response->grants().end(),
                     [&](const v1::LaneGrant& one) { return one.core() == core.core(); });
    wire::LaneHello hello;
    if (grant == response->grants().end() || grant->nonce().size() != hello.nonce.size())
      return absl::InternalError(fmt::format("it granted no lane to core {}", core.core()));
    std::transform(grant->nonce().begin(), grant->nonce().end(), hello.nonce.begin(),
                   [](char c) { return static_cast<std::byte>(c); });
    hello.core = CoreIndex{core.core()};
    hello.rank = Rank{settings_.rank};
    hello.incarnation = Incarnation{link.joined.incarnation()};
    hello.membership_epoch = MembershipEpoch{link.joined.membership_epoch()};
    absl::StatusOr<Dialled> dialled = Dial(link, lane, hello, timeout);
    if (!dialled.ok())
      return absl::Status(dialled.status().code(),
                          fmt::format("lane to core {}: {}", core.core(),
                                      std::string(dialled.status().message())));
    LogInfo("event=lane_opened job={} rank={} daemon={} core={} transport={} reason=\"{}\"",
            settings_.job, settings_.rank, link.endpoint.ToString(), core.core(),
            dialled->transport_index == kShmTransportIndex ? "shm" : "tcp", dialled->reason);
    connections_[lane] = std::move(dialled->connection);
    transport_indices_[lane] = dialled->transport_index;
    opened(lane, dialled->transport_index, *connections_[lane]);
  }
  return absl::OkStatus();
}

Status RackLanes::OpenAll(DurationNs timeout, const Opened& opened) {
  for (const std::unique_ptr<DaemonLink>& link : links_) {
    std::vector<std::uint32_t> lanes(link->lane_count());
    for (std::uint32_t i = 0; i < link->lane_count(); ++i) lanes[i] = link->first_lane + i;
    const absl::Status status = Open(*link, lanes, timeout, opened);
    if (!status.ok()) return NamedCallStatus("OpenLanes", link->endpoint, status);
    shared_[link->position] = std::all_of(lanes.begin(), lanes.end(), [this](std::uint32_t lane) {
      return transport_indices_[lane] == kShmTransportIndex;
    });
  }
  return Status();
}

}  // namespace phub::client
