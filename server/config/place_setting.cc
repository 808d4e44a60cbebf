#include "server/config/place_setting.h"

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/status_text.h"
#include "common/net/host_port.h"
#include "server/config/control_store_setting.h"

namespace phub::server {
namespace {

absl::Status BadPlace(const std::string& message) { return absl::InvalidArgumentError(message); }

// REQUIRES: the setting is an address.
absl::Status CheckReachable(const char* name, const std::string& value) {
  const auto address = net::ParseHostAndPort(value);
  PHUB_CHECK(address.ok(), "{}={}", name, value);
  if (address->host == "0.0.0.0" || address->host == "::") {
    return BadPlace(
        fmt::format("{} = \"{}\" is a wildcard address, at which other daemons and workers cannot "
                    "reach this one; set `advertise` to the address or name that they use",
                    name, value));
  }
  if (address->port != 0) return absl::OkStatus();
  return BadPlace(fmt::format("{} = \"{}\" has port 0; other daemons and workers need a fixed port",
                              name, value));
}

}  // namespace

absl::Status CheckPlace(const Settings& settings) {
  const bool in_etcd = !EtcdEndpointsOf(settings).empty();
  if (!settings.advertise.empty()) {
    if (!in_etcd) return BadPlace("advertise needs control_store = \"etcd:...\", which is not set");
    const absl::Status reachable = CheckReachable("advertise", settings.advertise);
    if (!reachable.ok()) return reachable;
  }
  if (settings.place.empty()) return absl::OkStatus();
  if (!in_etcd) return BadPlace("place needs control_store = \"etcd:...\", which is not set");
  if (const auto place = view::ParsePlace(settings.place); !place.ok()) {
    return BadPlace(fmt::format("place = \"{}\" {}", settings.place, MessageOf(place.status())));
  }
  return settings.advertise.empty() ? CheckReachable("listen", settings.listen) : absl::OkStatus();
}

const std::string& AdvertisedEndpoint(const Settings& settings) {
  return settings.advertise.empty() ? settings.listen : settings.advertise;
}

view::Place ViewPlaceOf(const Settings& settings) {
  if (settings.place.empty()) return {};
  auto place = view::ParsePlace(settings.place);
  PHUB_CHECK(place.ok(), "place={}", settings.place);
  return *std::move(place);
}

}  // namespace phub::server
