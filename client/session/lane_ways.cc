#include "client/session/lane_ways.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/base/check.h"

namespace phub::client {
namespace {

// The daemon's offer for this transport. Shared memory has a separate field, which daemons of all
// versions set.
v1::LaneOffer OfferOf(const v1::JoinResponse& joined, std::string_view transport) {
  v1::LaneOffer offer;
  if (transport == "shm") {
    offer.set_address(joined.shared_memory().name());
    offer.set_boot_id(joined.shared_memory().boot_id());
    return offer;
  }
  const auto found = std::ranges::find(joined.lane_offers(), transport, &v1::LaneOffer::transport);
  return found == joined.lane_offers().end() ? offer : *found;
}

}  // namespace

LaneWays::LaneWays(TransportChoice choice, const std::string& daemon_host, std::string boot_id)
    : boot_id_(std::move(boot_id)) {
  for (const transport::ClientLaneProvider& provider : transport::ClientLaneProviders()) {
    if (choice != TransportChoice::kAuto && static_cast<TransportChoice>(provider.choice) != choice)
      continue;
    ways_.push_back({.provider = &provider, .lanes = provider.open(daemon_host)});
  }
  PHUB_CHECK(!ways_.empty(), "choice={}", static_cast<int>(choice));
}

absl::StatusOr<std::vector<std::unique_ptr<transport::Transport>>> LaneWays::MakeTransports(
    std::uint32_t connections_max, std::size_t window_bytes) {
  std::vector<std::unique_ptr<transport::Transport>> transports;
  for (LaneWay& way : ways_) {
    auto transport = way.lanes->MakeTransport(connections_max, window_bytes);
    if (!transport.ok()) return transport.status();
    if (*transport == nullptr) continue;
    way.transport_index = static_cast<std::uint8_t>(transports.size());
    transports.push_back(*std::move(transport));
  }
  std::ranges::stable_sort(ways_, std::greater<>(),
                           [](const LaneWay& way) { return way.provider->preference; });
  return transports;
}

transport::LaneTarget LaneWays::TargetOf(const LaneWay& way, const DaemonLink& link,
                                         std::uint32_t lane) const {
  const v1::CoreEndpoint& core = link.joined.cores(static_cast<int>(lane - link.first_lane));
  const v1::LaneOffer offer = OfferOf(link.joined, way.provider->name);
  return {.host = core.host().empty() ? link.endpoint.host : core.host(),
          .port = static_cast<std::uint16_t>(core.port()),
          .core = CoreIndex{core.core()},
          .tls_lanes = link.joined.tls_lanes(),
          .encryption_required = link.joined.encryption_required(),
          .address = offer.address(),
          .same_host = !boot_id_.empty() && offer.boot_id() == boot_id_,
          .regions = link.regions};
}

void LaneWays::Register(void* data, std::size_t bytes, transport::ClientLanes::MemoryUse use) {
  for (const LaneWay& way : ways_) way.lanes->Register(static_cast<std::byte*>(data), bytes, use);
}

bool LaneWays::registers_memory() const {
  return std::ranges::any_of(ways_,
                             [](const LaneWay& way) { return way.lanes->registers_memory(); });
}

}  // namespace phub::client
