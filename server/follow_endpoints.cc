#include "server/follow_endpoints.h"

#include "common/net/host_port.h"
#include "server/config/place_setting.h"
#include "server/control/parts.h"

namespace phub::server {

void FollowEndpoints(Membership& membership, const Settings& settings, ControlThread& control,
                     PeerLinks* links, RackRelay* relay) {
  membership.OnEndpoints(
      [&settings, &control, links, relay](const view::Place& place, const std::string& endpoint) {
        const auto group = FindGroup(settings.view, place);
        const view::Place own = ViewPlaceOf(settings);
        if (!group.ok() || place == own || !net::ParseHostAndPort(endpoint).ok()) return;
        if (place.group == own.group) {
          return control.Run(
              [&](Control& each) { each.local_rack().SetEndpoint(place.number, endpoint); });
        }
        if (place.number != own.number) return;  // this daemon's plane has one daemon of each rack
        const RackIndex rack{static_cast<std::uint32_t>(*group)};
        if (links != nullptr) links->SetEndpoint(rack, endpoint);
        if (relay != nullptr) relay->SetEndpoint(rack, endpoint);
      });
}

}  // namespace phub::server
