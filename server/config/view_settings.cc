#include "server/config/view_settings.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_text.h"
#include "server/config/place_setting.h"
#include "server/config/rack_settings.h"

namespace phub::server {
namespace {

std::string Joined(const std::vector<std::string>& entries) {
  std::string text;
  for (const std::string& entry : entries) text += (text.empty() ? "" : ",") + entry;
  return text;
}

}  // namespace

absl::Status CheckNoRackSettings(const Settings& settings) {
  if (settings.place.empty()) return absl::OkStatus();
  for (const auto& [name, value] :
       {std::pair<std::string_view, const std::string&>("daemons", settings.daemons),
        {"self", settings.self},
        {"racks", settings.racks},
        {"rack_self", settings.rack_self},
        {"aggregators", settings.aggregators},
        {"topology", settings.topology}}) {
    if (value.empty()) continue;
    return absl::InvalidArgumentError(
        fmt::format("place = \"{}\" and {} = \"{}\" are both set; remove {}, since the cluster's "
                    "view has it (phubctl view show)",
                    settings.place, name, value, name));
  }
  if (settings.role == RackRole::kRack) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("place = \"{}\" and role = \"aggregator\" are both set; remove role, since the "
                  "cluster's view lists the aggregators",
                  settings.place));
}

absl::Status UseView(const view::View& view, const std::map<view::Place, std::string>& endpoints,
                     Settings& settings) {
  const view::Place own = ViewPlaceOf(settings);
  const auto group = FindGroup(view, own);
  PHUB_CHECK(group.ok(), "place={} view={}", settings.place, view.number);
  const auto at = [&](std::size_t index, std::uint32_t number) {
    return endpoints.at({view.NameOf(index), number});
  };
  std::vector<std::string> daemons;
  for (std::uint32_t number = 0; number < view.DaemonsOf(*group); ++number)
    daemons.push_back(at(*group, number));
  std::vector<std::string> racks;
  std::vector<std::string> aggregators;
  for (std::size_t each = 0; view.racks.size() > 1 && each < view.group_count(); ++each)
    (each < view.racks.size() ? racks : aggregators).push_back(at(each, own.number));

  settings.view = view;
  settings.daemons = Joined(daemons);
  settings.self = at(*group, own.number);
  settings.racks = Joined(racks);
  settings.aggregators = Joined(aggregators);
  settings.rack_self = racks.empty() ? "" : settings.self;
  settings.role = *group < view.racks.size() ? RackRole::kRack : RackRole::kAggregator;
  settings.topology = view.topology == view::kMeasured ? view.topology : "";
  absl::Status status = FindRackPlace(settings).status();
  if (status.ok()) status = FindPlaceAmongRacks(settings).status();
  if (!status.ok()) {
    return absl::InvalidArgumentError(fmt::format("view {}: {}", view.number, MessageOf(status)));
  }
  if (racks.empty() || !settings.tls_client_ca.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("view {} has {} racks, whose daemons authenticate each other with certificates; "
                  "set tls_certificate, tls_key and tls_client_ca (phubctl pki creates them)",
                  view.number, view.racks.size()));
}

}  // namespace phub::server
