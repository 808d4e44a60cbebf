#include "server/config/rack_settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/status_text.h"
#include "common/net/host_port.h"
#include "server/config/list_text.h"

namespace phub::server {
namespace {

constexpr std::size_t kDaemonsMax = 64;

absl::Status CheckEntry(std::string_view entry) {
  const auto address = net::ParseHostAndPort(entry);
  if (!address.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("has the entry \"{}\", which {}", entry, MessageOf(address.status())));
  }
  if (address->port == 0) {
    return absl::InvalidArgumentError(
        fmt::format("has the entry \"{}\" with port 0; workers need a fixed port", entry));
  }
  if (address->host == "0.0.0.0" || address->host == "::") {
    return absl::InvalidArgumentError(fmt::format(
        "has the entry \"{}\", a wildcard address; write the host that workers connect to", entry));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseDaemonList(std::string_view text) {
  absl::StatusOr<std::vector<std::string>> entries = SplitList(text);
  if (!entries.ok()) return entries;
  for (const std::string& entry : *entries) {
    if (absl::Status status = CheckEntry(entry); !status.ok()) return status;
  }
  if (entries->size() > kDaemonsMax) {
    return absl::InvalidArgumentError(
        fmt::format("has {} entries; a rack has at most {} daemons", entries->size(), kDaemonsMax));
  }
  return entries;
}

namespace {

// Reads a pair of settings: a list of daemons, and the entry of it that is this daemon.
absl::StatusOr<RackPlace> FindPlace(const Settings& settings, std::string_view list_name,
                                    const std::string& list, std::string_view self_name,
                                    const std::string& given) {
  RackPlace place;
  absl::StatusOr<std::vector<std::string>> entries = ParseDaemonList(list);
  if (!entries.ok()) return entries.status();
  place.endpoints = *std::move(entries);
  if (place.endpoints.empty()) {
    if (given.empty()) return place;
    return absl::InvalidArgumentError(
        fmt::format("{} = \"{}\" selects an entry of `{}`, but `{}` is empty", self_name, given,
                    list_name, list_name));
  }
  const std::string& self = given.empty() ? settings.listen : given;
  const auto found = std::find(place.endpoints.begin(), place.endpoints.end(), self);
  if (found != place.endpoints.end()) {
    place.self = static_cast<std::uint32_t>(found - place.endpoints.begin());
    return place;
  }
  return absl::InvalidArgumentError(
      given.empty()
          ? fmt::format("listen = \"{}\" is not in {} = \"{}\"; set `{}` to the entry that is this "
                        "daemon",
                        settings.listen, list_name, list, self_name)
          : fmt::format("{} = \"{}\" is not in {} = \"{}\"; spell it exactly as in the list",
                        self_name, given, list_name, list));
}

}  // namespace

absl::StatusOr<RackPlace> FindRackPlace(const Settings& settings) {
  return FindPlace(settings, "daemons", settings.daemons, "self", settings.self);
}

namespace {

// REQUIRES: each setting by itself is valid. Checks that no daemon is in both lists.
absl::StatusOr<std::vector<std::string>> AggregatorsOf(const Settings& settings) {
  auto aggregators = ParseDaemonList(settings.aggregators);
  if (!aggregators.ok() || aggregators->empty()) return aggregators;
  const auto racks = ParseDaemonList(settings.racks);
  if (!racks.ok()) return racks.status();
  if (racks->empty()) {
    return absl::InvalidArgumentError(
        fmt::format("aggregators = \"{}\" is set, but `racks` is empty; aggregators only sum what "
                    "racks exchange",
                    settings.aggregators));
  }
  for (const std::string& aggregator : *aggregators) {
    if (std::find(racks->begin(), racks->end(), aggregator) == racks->end()) continue;
    return absl::InvalidArgumentError(
        fmt::format("aggregators = \"{}\" has the entry \"{}\", which is also in racks; a daemon "
                    "can be in only one of the two lists",
                    settings.aggregators, aggregator));
  }
  return aggregators;
}

absl::Status CheckRole(const Settings& settings, const RackPlace& place) {
  const bool placed = place.self >= place.endpoints.size() - place.aggregator_count;
  const bool is_aggregator = place.aggregator_count > 0 && placed;
  if (is_aggregator == (settings.role == RackRole::kAggregator)) return absl::OkStatus();
  if (is_aggregator) {
    return absl::InvalidArgumentError(
        fmt::format("this daemon is {} in aggregators, but its role is \"rack\"; set role = "
                    "\"aggregator\", so that no workers are sent to it",
                    place.endpoints[place.self]));
  }
  return absl::InvalidArgumentError(
      "role = \"aggregator\", but `aggregators` does not list this daemon; add it there on every "
      "daemon");
}

}  // namespace

namespace {

// Daemon d of a rack exchanges only with daemon d of the other racks, so this daemon's lists must
// not name other daemons of its own rack. REQUIRES: `racks` is valid.
absl::Status CheckOtherDaemons(const Settings& settings, const RackPlace& among) {
  const auto rack = FindRackPlace(settings);
  if (!rack.ok()) return absl::OkStatus();  // reported as an error of `daemons`
  for (std::size_t d = 0; d < rack->endpoints.size() && !among.endpoints.empty(); ++d) {
    const auto found =
        std::find(among.endpoints.begin(), among.endpoints.end(), rack->endpoints[d]);
    const auto index = static_cast<std::size_t>(found - among.endpoints.begin());
    if (d == rack->self || found == among.endpoints.end()) continue;
    return absl::InvalidArgumentError(fmt::format(
        "racks and aggregators list {} as entry {}, but `daemons` lists it as daemon {} of this "
        "rack; this is daemon {}, which must list daemon {} of every rack",
        rack->endpoints[d], index, d, rack->self, rack->self));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsTopologyMeasured(const Settings& settings) { return settings.topology == "probe"; }

absl::StatusOr<RackPlace> FindPlaceAmongRacks(const Settings& settings) {
  const auto aggregators = AggregatorsOf(settings);
  if (!aggregators.ok()) return aggregators.status();
  const std::string all =
      aggregators->empty() ? settings.racks : settings.racks + "," + settings.aggregators;
  auto place = FindPlace(settings, aggregators->empty() ? "racks" : "racks and aggregators", all,
                         "rack_self", settings.rack_self);
  if (!place.ok()) return place;
  place->aggregator_count = static_cast<std::uint32_t>(aggregators->size());
  if (place->endpoints.size() - place->aggregator_count == 1) {
    return absl::InvalidArgumentError(
        fmt::format("racks = \"{}\" lists one rack; list at least two, or none", settings.racks));
  }
  if (absl::Status status = CheckRole(settings, *place); !status.ok()) return status;
  if (place->endpoints.empty() && !settings.topology.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("topology = \"{}\" is set, but `racks` is empty; a topology describes how "
                    "racks are connected",
                    settings.topology));
  }
  if (IsTopologyMeasured(settings) && place->aggregator_count > 0) {
    return absl::InvalidArgumentError(
        "topology = \"probe\" measures only the paths between racks and cannot place "
        "`aggregators`; write a topology file, or remove the aggregators");
  }
  if (absl::Status status = CheckOtherDaemons(settings, *place); !status.ok()) return status;
  return place;
}

}  // namespace phub::server
