#include "common/view/view.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <system_error>

#include "common/base/printable.h"
#include "common/base/status_text.h"
#include "common/plan/topology_json.h"
#include "common/plan/topology_toml.h"
#include "common/view/view_topology.h"

namespace phub::view {
namespace {

constexpr std::size_t kTextBytesShown = 80;

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

bool IsGroupName(std::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax && std::ranges::all_of(name, IsPlain);
}

absl::Status Wrong(const std::string& message) { return absl::InvalidArgumentError(message); }

absl::Status CheckName(const std::string& field, const std::string& name,
                       std::set<std::string>& names) {
  if (!IsGroupName(name)) {
    return Wrong(
        fmt::format("{} is \"{}\"; a name must have 1 to {} characters of A-Z, a-z, 0-9, '-', '_' "
                    "and '.'",
                    field, Printable(name, kTextBytesShown), kNameBytesMax));
  }
  if (names.insert(name).second) return absl::OkStatus();
  return Wrong(fmt::format(
      "{} is \"{}\", which is the name of another rack or aggregator; each needs its own", field,
      name));
}

absl::Status CheckRacks(const View& view, std::set<std::string>& names) {
  for (std::size_t i = 0; i < view.racks.size(); ++i) {
    const Rack& rack = view.racks[i];
    const std::string field = fmt::format("rack[{}]", i);
    if (absl::Status status = CheckName(field + ".name", rack.name, names); !status.ok())
      return status;
    if (rack.daemons < 1 || rack.daemons > kDaemonsMax) {
      return Wrong(fmt::format("{}.daemons is {}; a rack must have 1 to {} daemons", field,
                               rack.daemons, kDaemonsMax));
    }
    if (rack.daemons != view.racks[0].daemons) {
      return Wrong(
          fmt::format("{}.daemons is {}, but rack[0].daemons is {}; all racks must have the same "
                      "number of daemons",
                      field, rack.daemons, view.racks[0].daemons));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTopology(const View& view) {
  const std::size_t aggregators = view.aggregators.size();
  if (view.topology.empty()) {
    if (aggregators <= 1) return absl::OkStatus();
    return Wrong(
        fmt::format("topology is missing; with {} aggregators it must describe which racks connect "
                    "to which of them",
                    aggregators));
  }
  if (view.racks.size() == 1)
    return Wrong("topology is set, but the view has one rack; a topology connects racks");
  if (view.topology == kMeasured) {
    if (aggregators == 0) return absl::OkStatus();
    return Wrong(
        "topology is \"probe\", which measures only the paths between racks and cannot place "
        "aggregators");
  }
  if (view.topology.size() > kTopologyBytesMax) {
    return Wrong(fmt::format("topology has {} bytes; at most {} are allowed", view.topology.size(),
                             kTopologyBytesMax));
  }
  const auto topology = ParseTopology(view.topology);
  if (!topology.ok()) return Wrong(fmt::format("topology: {}", MessageOf(topology.status())));
  if (topology->members().size() != view.racks.size()) {
    return Wrong(
        fmt::format("topology has {} members, but the view has {} racks; member r must be rack r",
                    topology->members().size(), view.racks.size()));
  }
  const auto switches = static_cast<std::size_t>(
      std::ranges::count(topology->nodes(), plan::NodeKind::kAggregator, &plan::Node::kind));
  if (aggregators > 0 && switches != aggregators) {
    return Wrong(
        fmt::format("topology has {} aggregating switches, but the view has {} aggregators; list "
                    "one aggregator for each switch, in order",
                    switches, aggregators));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<plan::Topology> ParseTopology(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') return plan::ParseTopologyJson(text);
  return plan::ParseTopologyToml(text);
}

absl::Status CheckView(const View& view) {
  if (view.racks.empty()) return Wrong("rack is missing; a view needs at least one [[rack]]");
  if (view.group_count() > kGroupsMax) {
    return Wrong(
        fmt::format("rack and aggregators list {} racks and {} aggregators; at most {} are "
                    "possible together",
                    view.racks.size(), view.aggregators.size(), kGroupsMax));
  }
  std::set<std::string> names;
  if (absl::Status status = CheckRacks(view, names); !status.ok()) return status;
  for (std::size_t i = 0; i < view.aggregators.size(); ++i) {
    const std::string field = fmt::format("aggregators[{}]", i);
    if (absl::Status status = CheckName(field, view.aggregators[i], names); !status.ok())
      return status;
  }
  if (view.racks.size() == 1 && !view.aggregators.empty())
    return Wrong("aggregators is set, but the view has one rack; aggregators connect racks");
  return CheckTopology(view);
}

absl::StatusOr<Place> ParsePlace(std::string_view text) {
  const std::size_t slash = text.rfind('/');
  const std::string_view digits =
      slash == std::string_view::npos ? std::string_view() : text.substr(slash + 1);
  Place place;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), place.number);
  const bool is_number =
      error == std::errc() && end == digits.data() + digits.size() && place.number < kDaemonsMax;
  const bool is_canonical = digits.size() == 1 || !digits.starts_with('0');
  if (!is_number || !is_canonical || !IsGroupName(text.substr(0, slash))) {
    return Wrong(
        fmt::format("is not a place; write RACK/NUMBER or AGGREGATOR/NUMBER with the name in the "
                    "view and a number from 0 to {}, such as \"north/0\"",
                    kDaemonsMax - 1));
  }
  place.group = text.substr(0, slash);
  return place;
}

std::string ToString(const Place& place) { return fmt::format("{}/{}", place.group, place.number); }

std::vector<Place> PlacesOf(const View& view) {
  std::vector<Place> places;
  for (std::size_t group = 0; group < view.group_count(); ++group) {
    for (std::uint32_t number = 0; number < view.DaemonsOf(group); ++number)
      places.push_back({view.NameOf(group), number});
  }
  return places;
}

absl::StatusOr<std::size_t> FindGroup(const View& view, const Place& place) {
  std::string names;
  for (std::size_t group = 0; group < view.group_count(); ++group) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", view.NameOf(group));
    if (view.NameOf(group) != place.group) continue;
    if (place.number < view.DaemonsOf(group)) return group;
    return absl::NotFoundError(fmt::format(
        "place {} is not in view {}: {} has {} daemon{}, numbered from 0", ToString(place),
        view.number, place.group, view.DaemonsOf(group), view.DaemonsOf(group) == 1 ? "" : "s"));
  }
  return absl::NotFoundError(
      fmt::format("place {} is not in view {}, which has {}", ToString(place), view.number, names));
}

std::string Describe(const View& view) {
  const auto counted = [](std::size_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  std::string text = fmt::format("view {}: {}, {}", view.number, counted(view.racks.size(), "rack"),
                                 counted(PlacesOf(view).size(), "daemon"));
  if (!view.aggregators.empty()) text += ", " + counted(view.aggregators.size(), "aggregator");
  return text;
}

std::string DigestOf(const View& view) {
  std::string text;
  for (const Rack& rack : view.racks) text += fmt::format("rack {} {}\n", rack.name, rack.daemons);
  for (const std::string& name : view.aggregators) text += fmt::format("aggregator {}\n", name);
  text += "topology " + view.topology;
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::string hash;
  for (const unsigned char byte : digest) hash += fmt::format("{:02x}", byte);
  return hash;
}

}  // namespace phub::view
