#include "server/config/rack_settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/status_text.h"

namespace phub::server {
namespace {

constexpr std::size_t kDaemonsMax = 64;

std::string_view Trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

absl::Status CheckEntry(std::string_view entry) {
  if (entry.empty()) return absl::InvalidArgumentError("has an empty entry between its commas");
  const auto address = ParseHostAndPort(entry);
  if (!address.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("has the entry \"{}\", which {}", entry, MessageOf(address.status())));
  }
  if (address->port == 0) {
    return absl::InvalidArgumentError(
        fmt::format("has the entry \"{}\", whose port is open; workers need to know it", entry));
  }
  if (address->host == "0.0.0.0" || address->host == "::") {
    return absl::InvalidArgumentError(fmt::format(
        "has the entry \"{}\", which names no host; write the one that workers reach", entry));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseDaemonList(std::string_view text) {
  std::vector<std::string> entries;
  if (Trimmed(text).empty()) return entries;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string entry(Trimmed(text.substr(begin, end - begin)));
    if (absl::Status status = CheckEntry(entry); !status.ok()) return status;
    if (std::find(entries.begin(), entries.end(), entry) != entries.end()) {
      return absl::InvalidArgumentError(fmt::format("has the entry \"{}\" twice", entry));
    }
    entries.push_back(entry);
    begin = end + 1;
  }
  if (entries.size() > kDaemonsMax) {
    return absl::InvalidArgumentError(
        fmt::format("has {} entries; a rack has at most {} daemons", entries.size(), kDaemonsMax));
  }
  return entries;
}

namespace {

// What a pair of settings says: a list of daemons, and which of them this one is.
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
        fmt::format("{} = \"{}\" says which of `{}` this one is, and `{}` is empty", self_name,
                    given, list_name, list_name));
  }
  const std::string& self = given.empty() ? settings.listen : given;
  const auto found = std::find(place.endpoints.begin(), place.endpoints.end(), self);
  if (found != place.endpoints.end()) {
    place.self = static_cast<std::uint32_t>(found - place.endpoints.begin());
    return place;
  }
  return absl::InvalidArgumentError(
      given.empty()
          ? fmt::format("listen = \"{}\" is not in {} = \"{}\"; say with `{}` which entry this "
                        "daemon is",
                        settings.listen, list_name, list, self_name)
          : fmt::format("{} = \"{}\" is not in {} = \"{}\"; write it as it is written there",
                        self_name, given, list_name, list));
}

}  // namespace

absl::StatusOr<RackPlace> FindRackPlace(const Settings& settings) {
  return FindPlace(settings, "daemons", settings.daemons, "self", settings.self);
}

namespace {

// The settings were read one by one. Nobody is in both lists.
absl::StatusOr<std::vector<std::string>> AggregatorsOf(const Settings& settings) {
  auto aggregators = ParseDaemonList(settings.aggregators);
  if (!aggregators.ok() || aggregators->empty()) return aggregators;
  const auto racks = ParseDaemonList(settings.racks);
  if (!racks.ok()) return racks.status();
  if (racks->empty()) {
    return absl::InvalidArgumentError(
        fmt::format("aggregators = \"{}\" sum what `racks` exchange, and `racks` is empty",
                    settings.aggregators));
  }
  for (const std::string& aggregator : *aggregators) {
    if (std::find(racks->begin(), racks->end(), aggregator) == racks->end()) continue;
    return absl::InvalidArgumentError(
        fmt::format("aggregators = \"{}\" has the entry \"{}\", which is in racks, too; a daemon "
                    "is one of both",
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
        fmt::format("this daemon is {} of aggregators, and its role is \"rack\"; write role = "
                    "\"aggregator\", so that nobody sends workers to it",
                    place.endpoints[place.self]));
  }
  return absl::InvalidArgumentError(
      "role = \"aggregator\", and this daemon is not one of `aggregators`; name it there, at every "
      "daemon");
}

}  // namespace

namespace {

// The rack's other daemons exchange with other ones than this. REQUIRES: `racks` is right.
absl::Status CheckOtherDaemons(const Settings& settings, const RackPlace& among) {
  const auto rack = FindRackPlace(settings);
  if (!rack.ok()) return absl::OkStatus();  // which is said of `daemons`
  for (std::size_t d = 0; d < rack->endpoints.size() && !among.endpoints.empty(); ++d) {
    const auto found =
        std::find(among.endpoints.begin(), among.endpoints.end(), rack->endpoints[d]);
    const auto index = static_cast<std::size_t>(found - among.endpoints.begin());
    if (d == rack->self || found == among.endpoints.end()) continue;
    return absl::InvalidArgumentError(fmt::format(
        "racks and aggregators name {} as number {}, which is daemon {} of this daemon's own rack "
        "by `daemons`; this is daemon {}, and names daemon {} of every rack",
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
        fmt::format("racks = \"{}\" is one rack; name at least two, or none", settings.racks));
  }
  if (absl::Status status = CheckRole(settings, *place); !status.ok()) return status;
  if (place->endpoints.empty() && !settings.topology.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("topology = \"{}\" says how `racks` are connected, and `racks` is empty",
                    settings.topology));
  }
  if (IsTopologyMeasured(settings) && place->aggregator_count > 0) {
    return absl::InvalidArgumentError(
        "topology = \"probe\" measures what lies between racks, and not where `aggregators` are; "
        "write the topology into a file, or do without aggregators");
  }
  if (absl::Status status = CheckOtherDaemons(settings, *place); !status.ok()) return status;
  return place;
}

}  // namespace phub::server
