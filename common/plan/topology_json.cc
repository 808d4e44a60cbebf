#include "common/plan/topology_json.h"

#include <cmath>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "common/base/printable.h"
#include "common/plan/json_reader.h"
#include "common/plan/topology_builder.h"
#include "common/plan/topology_toml.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

constexpr std::string_view kTopologyFormat = "phub.topology.v1";
using NodeMap = std::map<std::string, NodeIndex>;

absl::StatusOr<std::optional<Place>> ReadPlace(const Json& node, std::string_view where) {
  const auto found = node.find("place");
  if (found == node.end()) return std::optional<Place>();
  if (!found->is_array() || found->size() != 2 || !(*found)[0].is_number() ||
      !(*found)[1].is_number())
    return JsonError(where, "field 'place' must be two numbers [x, y]");
  const Place place{(*found)[0].get<double>(), (*found)[1].get<double>()};
  if (!(std::abs(place.x) < 1e6) || !(std::abs(place.y) < 1e6))
    return JsonError(where, "field 'place' must hold numbers between -1e6 and 1e6");
  return std::optional<Place>(place);
}

absl::Status ReadNodes(const Json& list, NodeMap& nodes, TopologyBuilder& builder) {
  if (list.size() > kNodesMax) return JsonError("nodes", fmt::format("more than {}", kNodesMax));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("nodes[{}]", i);
    if (absl::Status status = CheckObject(list[i], where, {"name", "kind", "place"}); !status.ok())
      return status;
    absl::StatusOr<std::string> name = StringField(list[i], where, "name");
    if (!name.ok()) return name.status();
    absl::StatusOr<std::string> kind_name = StringField(list[i], where, "kind");
    if (!kind_name.ok()) return kind_name.status();
    const auto kind = ParseKind(*kind_name);
    if (!kind) return JsonError(where, "field 'kind' must be member, aggregator or switch");
    absl::StatusOr<std::optional<Place>> place = ReadPlace(list[i], where);
    if (!place.ok()) return place.status();
    const NodeIndex index = builder.AddNode({*name, *kind, *place});
    if (!nodes.emplace(*name, index).second)
      return JsonError(where, fmt::format("two nodes are named '{}'", Printable(*name, 64)));
  }
  return absl::OkStatus();
}

absl::StatusOr<NodeIndex> ReadEnd(const Json& link, std::string_view where, const char* field,
                                  const NodeMap& nodes) {
  absl::StatusOr<std::string> name = StringField(link, where, field);
  if (!name.ok()) return name.status();
  const auto found = nodes.find(*name);
  if (found == nodes.end())
    return JsonError(where,
                     fmt::format("field '{}': there is no node '{}'", field, Printable(*name, 64)));
  return found->second;
}

absl::Status ReadLinks(const Json& list, const NodeMap& nodes, TopologyBuilder& builder) {
  if (list.size() > kLinksMax) return JsonError("links", fmt::format("more than {}", kLinksMax));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("links[{}]", i);
    if (absl::Status status =
            CheckObject(list[i], where, {"from", "to", "bandwidth", "latency_ns"});
        !status.ok())
      return status;
    const absl::StatusOr<NodeIndex> from = ReadEnd(list[i], where, "from", nodes);
    if (!from.ok()) return from.status();
    const absl::StatusOr<NodeIndex> to = ReadEnd(list[i], where, "to", nodes);
    if (!to.ok()) return to.status();
    absl::StatusOr<std::string> bandwidth = StringField(list[i], where, "bandwidth");
    if (!bandwidth.ok()) return bandwidth.status();
    const auto capacity = Rational::Parse(*bandwidth);
    if (!capacity || capacity->numerator() <= 0)
      return JsonError(where,
                       "field 'bandwidth' must be a positive number or a fraction such as \"8/3\"");
    const absl::StatusOr<std::int64_t> latency =
        IntegerField(list[i], where, "latency_ns", 0, kLatencyNsMax);
    if (!latency.ok()) return latency.status();
    builder.AddLink(*from, *to, *capacity, *latency);
  }
  return absl::OkStatus();
}

}  // namespace

std::string TopologyToJson(const Topology& topology) {
  nlohmann::ordered_json root;
  root["format"] = kTopologyFormat;
  root["name"] = topology.name();
  root["unit_bytes_per_s"] = topology.unit_bytes_per_s();
  root["members_forward"] = topology.members_forward();
  auto& nodes = root["nodes"] = nlohmann::ordered_json::array();
  for (const Node& node : topology.nodes()) {
    nlohmann::ordered_json entry{{"name", node.name}, {"kind", KindName(node.kind)}};
    if (node.place) entry["place"] = {node.place->x, node.place->y};
    nodes.push_back(std::move(entry));
  }
  auto& links = root["links"] = nlohmann::ordered_json::array();
  for (std::uint32_t i = 0; i < topology.links().size(); ++i) {
    const Link& link = topology.link(LinkIndex{i});
    links.push_back({{"from", topology.node(link.from).name},
                     {"to", topology.node(link.to).name},
                     {"bandwidth", topology.CapacityOf(LinkIndex{i}).ToString()},
                     {"latency_ns", link.latency_ns}});
  }
  // Names may be invalid UTF-8; invalid bytes are replaced, not rejected.
  return root.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Topology> ParseTopologyJson(std::string_view text) {
  const absl::StatusOr<Json> root = ParseJson(text, kTopologyTextBytesMax);
  if (!root.ok()) return root.status();
  if (absl::Status status = CheckObject(
          *root, "", {"format", "name", "unit_bytes_per_s", "members_forward", "nodes", "links"});
      !status.ok())
    return status;
  const absl::StatusOr<std::string> format = StringField(*root, "", "format");
  if (!format.ok()) return format.status();
  if (*format != kTopologyFormat)
    return JsonError("format",
                     fmt::format("'{}' is not {}", Printable(*format, 64), kTopologyFormat));
  const absl::StatusOr<std::string> name = StringField(*root, "", "name");
  if (!name.ok()) return name.status();
  const absl::StatusOr<std::int64_t> unit =
      IntegerField(*root, "", "unit_bytes_per_s", 1, kUnitBytesPerSecondMax);
  if (!unit.ok()) return unit.status();
  const absl::StatusOr<bool> forward = FlagField(*root, "", "members_forward");
  if (!forward.ok()) return forward.status();
  const absl::StatusOr<const Json*> nodes = ArrayField(*root, "", "nodes");
  if (!nodes.ok()) return nodes.status();
  const absl::StatusOr<const Json*> links = ArrayField(*root, "", "links");
  if (!links.ok()) return links.status();
  TopologyBuilder builder(Printable(*name, 200), *unit, 0, false);
  if (*forward) builder.SetMembersForward();
  NodeMap node_by_name;
  if (absl::Status status = ReadNodes(**nodes, node_by_name, builder); !status.ok()) return status;
  if (absl::Status status = ReadLinks(**links, node_by_name, builder); !status.ok()) return status;
  return builder.Build();
}

}  // namespace phub::plan
