#include "common/plan/topology_toml.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/printable.h"
#include "common/base/units.h"
#include "common/plan/generators.h"
#include "common/plan/toml_reader.h"
#include "common/plan/topology_builder.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

class TomlReader {
 public:
  absl::StatusOr<Topology> Read(const toml::table& root);

 private:
  absl::Status ReadHead(const toml::table& root);
  absl::Status ReadNodes(const toml::table& root, std::string_view key, NodeKind kind,
                         TopologyBuilder& builder);
  absl::Status ReadLinks(const toml::table& root, TopologyBuilder& builder);
  absl::Status ReadLink(const toml::table& table, TopologyBuilder& builder);
  absl::StatusOr<NodeIndex> ReadEnd(const toml::table& table, std::string_view key) const;
  absl::StatusOr<Rational> ReadCapacity(const toml::table& table, std::string_view link) const;
  absl::StatusOr<std::int64_t> ReadLatency(const toml::table& table, std::int64_t otherwise) const;
  absl::Status AddOnce(NodeIndex from, NodeIndex to, Rational capacity, std::int64_t latency_ns,
                       std::uint32_t line, TopologyBuilder& builder);

  std::string name_ = "file";
  std::int64_t unit_bytes_per_s_ = kDefaultUnitBytesPerSecond;
  std::int64_t latency_ns_ = kDefaultLatencyNs;
  bool members_forward_ = false;
  std::map<std::string, NodeIndex, std::less<>> nodes_;
  std::map<std::pair<NodeIndex, NodeIndex>, std::uint32_t> line_of_link_;
};

absl::Status TomlReader::ReadHead(const toml::table& root) {
  if (const toml::node* node = root.get("name")) {
    const auto name = node->value_exact<std::string>();
    if (!name || name->size() > 200)
      return TomlError(LineOf(*node), "name must be a string of at most 200 bytes");
    name_ = *name;
  }
  if (const toml::node* node = root.get("unit")) {
    const auto text = node->value_exact<std::string>();
    const auto unit = text ? ParseBandwidth(*text) : std::nullopt;
    if (!unit) return TomlError(LineOf(*node), "unit must be a bandwidth such as \"100Gbit/s\"");
    unit_bytes_per_s_ = *unit;
  }
  const absl::StatusOr<std::int64_t> latency = ReadLatency(root, kDefaultLatencyNs);
  if (!latency.ok()) return latency.status();
  latency_ns_ = *latency;
  if (const toml::node* node = root.get("members_forward")) {
    const auto forwards = node->value_exact<bool>();
    if (!forwards) return TomlError(LineOf(*node), "members_forward must be true or false");
    members_forward_ = *forwards;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> TomlReader::ReadLatency(const toml::table& table,
                                                     std::int64_t otherwise) const {
  const toml::node* node = table.get("latency");
  if (node == nullptr) return otherwise;
  const auto text = node->value_exact<std::string>();
  const auto latency = text ? ParseDuration(*text) : std::nullopt;
  if (!latency || *latency > kLatencyNsMax)
    return TomlError(LineOf(*node),
                     "latency must be a duration of at most 1 minute, such as \"500ns\"");
  return *latency;
}

absl::Status TomlReader::ReadNodes(const toml::table& root, std::string_view key, NodeKind kind,
                                   TopologyBuilder& builder) {
  const toml::node* list = root.get(key);
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array())
    return TomlError(LineOf(*list), fmt::format("{} must be a list of names", key));
  for (const toml::node& element : *list->as_array()) {
    const auto name = element.value_exact<std::string>();
    if (!name || name->empty() || name->size() > 64)
      return TomlError(LineOf(element),
                       fmt::format("{}: a name must be a string of 1 to 64 bytes", key));
    if (nodes_.size() >= kNodesMax)
      return TomlError(LineOf(element),
                       fmt::format("the topology has more than {} nodes", kNodesMax));
    const NodeIndex index = builder.AddNode({*name, kind, std::nullopt});
    if (!nodes_.emplace(*name, index).second)
      return TomlError(LineOf(element), fmt::format("two nodes are named '{}'", *name));
  }
  return absl::OkStatus();
}

absl::StatusOr<NodeIndex> TomlReader::ReadEnd(const toml::table& table,
                                              std::string_view key) const {
  const toml::node* node = table.get(key);
  if (node == nullptr) return TomlError(LineOf(table), fmt::format("link: '{}' is missing", key));
  const auto name = node->value_exact<std::string>();
  if (!name)
    return TomlError(LineOf(*node), fmt::format("link: '{}' must be the name of a node", key));
  const auto found = nodes_.find(*name);
  if (found == nodes_.end())
    return TomlError(
        LineOf(*node),
        fmt::format("link: no member, switch or aggregator is named '{}'", Printable(*name, 64)));
  return found->second;
}

absl::StatusOr<Rational> TomlReader::ReadCapacity(const toml::table& table,
                                                  std::string_view link) const {
  const toml::node* node = table.get("bandwidth");
  if (node == nullptr) return Rational(1);
  std::optional<Rational> capacity;
  if (const auto whole = node->value_exact<std::int64_t>()) {
    capacity = Rational(*whole);
  } else if (const auto text = node->value_exact<std::string>()) {
    capacity = Rational::Parse(*text);
    if (const auto bandwidth = ParseBandwidth(*text); bandwidth)
      capacity = Rational::Make(*bandwidth, unit_bytes_per_s_);
  }
  if (!capacity)
    return TomlError(
        LineOf(*node),
        fmt::format("link {}: the bandwidth must be like 1, \"8/3\" or \"40Gbit/s\"", link));
  if (capacity->numerator() <= 0)
    return TomlError(LineOf(*node), fmt::format("link {}: the bandwidth must be positive", link));
  return *capacity;
}

absl::Status TomlReader::AddOnce(NodeIndex from, NodeIndex to, Rational capacity,
                                 std::int64_t latency_ns, std::uint32_t line,
                                 TopologyBuilder& builder) {
  const auto [earlier, is_new] = line_of_link_.emplace(std::pair(from, to), line);
  if (!is_new)
    return TomlError(
        line, fmt::format("link: line {} defines the same link; define parallel cables as one "
                          "link with the sum of their bandwidths",
                          earlier->second));
  builder.AddLink(from, to, capacity, latency_ns);
  return absl::OkStatus();
}

absl::Status TomlReader::ReadLink(const toml::table& table, TopologyBuilder& builder) {
  constexpr std::array<std::string_view, 5> kKeys = {"from", "to", "bandwidth", "latency",
                                                     "one_way"};
  if (absl::Status status = CheckKeys(table, kKeys, "[[link]]"); !status.ok()) return status;
  const absl::StatusOr<NodeIndex> from = ReadEnd(table, "from");
  if (!from.ok()) return from.status();
  const absl::StatusOr<NodeIndex> to = ReadEnd(table, "to");
  if (!to.ok()) return to.status();
  const std::string link =
      fmt::format("{}->{}", *table["from"].value<std::string>(), *table["to"].value<std::string>());
  const std::uint32_t line = LineOf(table);
  if (*from == *to) return TomlError(line, fmt::format("link {} connects a node to itself", link));
  const absl::StatusOr<Rational> capacity = ReadCapacity(table, link);
  if (!capacity.ok()) return capacity.status();
  const absl::StatusOr<std::int64_t> latency = ReadLatency(table, latency_ns_);
  if (!latency.ok()) return latency.status();
  bool one_way = false;
  if (const toml::node* node = table.get("one_way")) {
    const auto value = node->value_exact<bool>();
    if (!value)
      return TomlError(LineOf(*node), fmt::format("link {}: one_way must be true or false", link));
    one_way = *value;
  }
  absl::Status status = AddOnce(*from, *to, *capacity, *latency, line, builder);
  if (status.ok() && !one_way) status = AddOnce(*to, *from, *capacity, *latency, line, builder);
  return status;
}

absl::Status TomlReader::ReadLinks(const toml::table& root, TopologyBuilder& builder) {
  const toml::node* list = root.get("link");
  if (list == nullptr) return absl::InvalidArgumentError("the topology has no [[link]]");
  if (!list->is_array()) return TomlError(LineOf(*list), "write each link as a [[link]] table");
  for (const toml::node& element : *list->as_array()) {
    if (!element.is_table())
      return TomlError(LineOf(element), "write each link as a [[link]] table");
    if (line_of_link_.size() >= kLinksMax)
      return TomlError(LineOf(element),
                       fmt::format("the topology has more than {} links", kLinksMax));
    if (absl::Status status = ReadLink(*element.as_table(), builder); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<Topology> TomlReader::Read(const toml::table& root) {
  constexpr std::array<std::string_view, 8> kKeys = {
      "name", "unit", "latency", "members_forward", "members", "switches", "aggregators", "link"};
  if (absl::Status status = CheckKeys(root, kKeys, "a topology"); !status.ok()) return status;
  if (absl::Status status = ReadHead(root); !status.ok()) return status;
  TopologyBuilder builder(name_, unit_bytes_per_s_, latency_ns_, false);
  if (members_forward_) builder.SetMembersForward();
  for (const auto& [key, kind] :
       {std::pair<std::string_view, NodeKind>{"members", NodeKind::kMember},
        {"switches", NodeKind::kSwitch},
        {"aggregators", NodeKind::kAggregator}})
    if (absl::Status status = ReadNodes(root, key, kind, builder); !status.ok()) return status;
  if (absl::Status status = ReadLinks(root, builder); !status.ok()) return status;
  return builder.Build();
}

}  // namespace

absl::StatusOr<Topology> ParseTopologyToml(std::string_view text) {
  if (text.size() > kTopologyTextBytesMax)
    return absl::InvalidArgumentError(fmt::format(
        "the topology has {} bytes; at most {} are allowed", text.size(), kTopologyTextBytesMax));
  try {
    const toml::table root = toml::parse(text);
    return TomlReader().Read(root);
  } catch (const toml::parse_error& error) {
    return TomlError(error.source().begin.line, error.description());
  }
}

}  // namespace phub::plan
