#include "common/plan/sketches/sketch_toml.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string>
#include <utility>

#include "common/plan/planners/symmetry.h"
#include "common/plan/sketches/taccl_profile.h"
#include "common/plan/toml_reader.h"

namespace phub::plan {
namespace {

using Places = std::vector<std::uint32_t>;

class SketchTomlReader {
 public:
  explicit SketchTomlReader(const Topology& topology) : topology_(topology) {}

  absl::StatusOr<TopologySketch> Read(const toml::table& root) {
    constexpr std::array<std::string_view, 7> kKeys = {
        "group_size", "groups",         "symmetry", "trees_per_member",
        "prefer",     "between_groups", "forbid"};
    if (absl::Status status = CheckKeys(root, kKeys, "a sketch"); !status.ok()) return status;
    for (absl::Status (SketchTomlReader::*read)(const toml::table&) :
         {&SketchTomlReader::ReadGroups, &SketchTomlReader::ReadSymmetry,
          &SketchTomlReader::ReadTrees, &SketchTomlReader::ReadBetween,
          &SketchTomlReader::ReadForbidden})
      if (absl::Status status = (this->*read)(root); !status.ok()) return status;
    absl::StatusOr<Topology> topology = Remaining();
    if (!topology.ok()) return topology.status();
    if (!rules_.rotations.empty())
      if (const auto symmetry = SymmetryUnder(*topology, rules_); !symmetry.ok())
        return TomlError(LineOf(*root.get("symmetry")),
                         fmt::format("symmetry: {}", std::string(symmetry.status().message())));
    return TopologySketch{*std::move(topology), std::move(rules_)};
  }

 private:
  std::uint32_t Members() const { return static_cast<std::uint32_t>(topology_.members().size()); }

  absl::Status ReadGroups(const toml::table& root) {
    const toml::node* size = root.get("group_size");
    const toml::node* groups = root.get("groups");
    if (size != nullptr && groups != nullptr)
      return TomlError(LineOf(*groups), "groups and group_size exclude each other");
    if (groups != nullptr) return ReadNamedGroups(*groups);
    if (size == nullptr) return absl::OkStatus();
    const auto value = size->value_exact<std::int64_t>();
    if (!value || *value < 1 || *value > Members() || Members() % *value != 0)
      return TomlError(LineOf(*size),
                       fmt::format("group_size must divide the number of members, {}", Members()));
    SetGroups(rules_, Members(), static_cast<std::uint32_t>(*value));
    places_ = static_cast<std::uint32_t>(*value);
    return absl::OkStatus();
  }

  absl::Status ReadNamedGroups(const toml::node& groups) {
    constexpr std::string_view kForm = "groups must be a list of lists of members";
    rules_.group_of.assign(Members(), kNoGroup);
    rules_.place_of.assign(Members(), 0);
    if (!groups.is_array()) return TomlError(LineOf(groups), kForm);
    std::uint32_t group = 0;
    for (const toml::node& names : *groups.as_array()) {
      if (!names.is_array() || names.as_array()->empty())
        return TomlError(LineOf(names), fmt::format("{}; a group must not be empty", kForm));
      std::uint32_t place = 0;
      for (const toml::node& name : *names.as_array()) {
        const auto text = name.value_exact<std::string>();
        const auto node = text ? topology_.FindNode(*text) : std::nullopt;
        if (!node || !topology_.IsMember(*node))
          return TomlError(LineOf(name), fmt::format("groups: {} has no member '{}'",
                                                     Printable(topology_.name(), 64),
                                                     Printable(text.value_or("?"), 64)));
        const std::uint32_t rank = topology_.RankOf(*node);
        if (rules_.group_of[rank] != kNoGroup)
          return TomlError(LineOf(name), fmt::format("groups: member '{}' is in two groups",
                                                     Printable(*text, 64)));
        rules_.group_of[rank] = group;
        rules_.place_of[rank] = place++;
      }
      places_ = std::max(places_, place);
      ++group;
    }
    for (std::uint32_t rank = 0; rank < Members(); ++rank)
      if (rules_.group_of[rank] == kNoGroup)
        return TomlError(
            LineOf(groups),
            fmt::format("groups: member '{}' is in no group",
                        Printable(topology_.node(topology_.members()[rank]).name, 64)));
    return absl::OkStatus();
  }

  absl::Status ReadSymmetry(const toml::table& root) {
    const toml::node* list = root.get("symmetry");
    if (list == nullptr) return absl::OkStatus();
    constexpr std::string_view kForm =
        "symmetry must be a list of at most 64 pairs [OFFSET, RANKS] with 1 <= OFFSET < RANKS";
    if (!list->is_array() || list->as_array()->size() > 64) return TomlError(LineOf(*list), kForm);
    for (const toml::node& element : *list->as_array()) {
      const auto pair = PairFrom(element, kMembersMax);
      if (!pair || pair->first < 1 || pair->first >= pair->second)
        return TomlError(LineOf(element), kForm);
      rules_.rotations.push_back({pair->first, pair->second});
    }
    return absl::OkStatus();
  }

  absl::Status ReadTrees(const toml::table& root) {
    if (const toml::node* node = root.get("trees_per_member")) {
      const auto value = node->value_exact<std::int64_t>();
      if (!value || *value < 1 || *value > kChunksPerRankMax)
        return TomlError(LineOf(*node),
                         fmt::format("trees_per_member must be from 1 to {}", kChunksPerRankMax));
      rules_.trees_per_member = static_cast<std::uint32_t>(*value);
    }
    const toml::node* prefer = root.get("prefer");
    if (prefer == nullptr) return absl::OkStatus();
    const std::string name = prefer->value_exact<std::string>().value_or("");
    for (const auto& [known, preference] : {std::pair("uc-min", PlanPreference::kFewestPairs),
                                            std::pair("uc-max", PlanPreference::kMostPairs),
                                            std::pair("minmax", PlanPreference::kLowestPeak),
                                            std::pair("maxmin", PlanPreference::kHighestLow)})
      if (name == known) rules_.preference = preference;
    if (rules_.preference == PlanPreference::kAny)
      return TomlError(LineOf(*prefer), "prefer must be uc-min, uc-max, minmax or maxmin");
    return absl::OkStatus();
  }

  absl::Status ReadBetween(const toml::table& root) {
    const toml::node* node = root.get("between_groups");
    if (node == nullptr) return absl::OkStatus();
    constexpr std::array<std::string_view, 6> kKeys = {"senders",    "receivers", "pairs",
                                                       "may_return", "own_first", "carries"};
    const toml::table* table = node->as_table();
    if (table == nullptr) return TomlError(LineOf(*node), "between_groups must be a table");
    if (places_ == 0) return TomlError(LineOf(*node), "between_groups needs group_size or groups");
    if (absl::Status status = CheckKeys(*table, kKeys, "[between_groups]"); !status.ok())
      return status;
    if (absl::Status status = ReadPairs(*table); !status.ok()) return status;
    if (absl::Status status = ReadCarries(*table); !status.ok()) return status;
    for (const auto& [key, flag] :
         {std::pair("may_return", &rules_.may_return), std::pair("own_first", &rules_.own_first)}) {
      const toml::node* value = table->get(key);
      if (value == nullptr) continue;
      const auto parsed = value->value_exact<bool>();
      if (!parsed) return TomlError(LineOf(*value), fmt::format("{} must be true or false", key));
      *flag = *parsed;
    }
    return absl::OkStatus();
  }

  absl::Status ReadPairs(const toml::table& table) {
    const toml::node* pairs = table.get("pairs");
    const toml::node* senders = table.get("senders");
    const toml::node* receivers = table.get("receivers");
    if (pairs == nullptr && senders == nullptr && receivers == nullptr) return absl::OkStatus();
    std::set<std::pair<std::uint32_t, std::uint32_t>>& allowed = rules_.pairs.emplace();
    if (pairs == nullptr) {
      const absl::StatusOr<Places> from = PlacesFrom(senders, "senders");
      if (!from.ok()) return from.status();
      const absl::StatusOr<Places> to = PlacesFrom(receivers, "receivers");
      if (!to.ok()) return to.status();
      for (const std::uint32_t sender : *from)
        for (const std::uint32_t receiver : *to) allowed.emplace(sender, receiver);
      return absl::OkStatus();
    }
    if (senders != nullptr || receivers != nullptr)
      return TomlError(LineOf(*pairs), "pairs excludes senders and receivers");
    const std::string form = fmt::format(
        "pairs must be a list of [SENDER, RECEIVER], places from 0 to {}, that is not empty",
        places_ - 1);
    if (!pairs->is_array() || pairs->as_array()->empty()) return TomlError(LineOf(*pairs), form);
    for (const toml::node& element : *pairs->as_array()) {
      const auto pair = PairFrom(element, places_ - 1);
      if (!pair) return TomlError(LineOf(element), form);
      allowed.insert(*pair);
    }
    return absl::OkStatus();
  }

  absl::Status ReadCarries(const toml::table& table) {
    const toml::node* node = table.get("carries");
    if (node == nullptr) return absl::OkStatus();
    if (!node->is_table()) return TomlError(LineOf(*node), "carries must be a table");
    auto& carries = rules_.carries.emplace();
    std::set<std::uint32_t> carried;
    for (const auto& [key, value] : *node->as_table()) {
      const std::string_view text = key.str();
      std::uint32_t sender = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sender);
      if (error != std::errc{} || end != text.data() + text.size() || !IsSender(sender))
        return TomlError(LineOf(value), fmt::format("carries: '{}' is not the place of a sender",
                                                    Printable(text, 64)));
      const absl::StatusOr<Places> homes = PlacesFrom(&value, "carries");
      if (!homes.ok()) return homes.status();
      carries[sender].insert(homes->begin(), homes->end());
      carried.insert(homes->begin(), homes->end());
    }
    for (std::uint32_t place = 0; place < places_; ++place)
      if (!carried.contains(place))
        return TomlError(LineOf(*node),
                         fmt::format("carries: no sender may send the data of place {}", place));
    return absl::OkStatus();
  }

  bool IsSender(std::uint32_t place) const {
    if (place >= places_ || !rules_.pairs) return place < places_;
    const auto pair = rules_.pairs->lower_bound({place, 0});
    return pair != rules_.pairs->end() && pair->first == place;
  }

  // All places if the key is absent.
  absl::StatusOr<Places> PlacesFrom(const toml::node* list, std::string_view key) const {
    Places places;
    if (list == nullptr) {
      for (std::uint32_t place = 0; place < places_; ++place) places.push_back(place);
      return places;
    }
    const std::string form =
        fmt::format("{} must be a list of places from 0 to {} that is not empty", key, places_ - 1);
    if (!list->is_array() || list->as_array()->empty()) return TomlError(LineOf(*list), form);
    for (const toml::node& element : *list->as_array()) {
      const auto place = element.value_exact<std::int64_t>();
      if (!place || *place < 0 || *place >= places_) return TomlError(LineOf(element), form);
      places.push_back(static_cast<std::uint32_t>(*place));
    }
    return places;
  }

  static std::optional<std::pair<std::uint32_t, std::uint32_t>> PairFrom(const toml::node& node,
                                                                         std::size_t most) {
    const toml::array* array = node.as_array();
    if (array == nullptr || array->size() != 2) return std::nullopt;
    const auto first = (*array)[0].value_exact<std::int64_t>();
    const auto second = (*array)[1].value_exact<std::int64_t>();
    const auto limit = static_cast<std::int64_t>(most);
    if (!first || !second || *first < 0 || *second < 0 || *first > limit || *second > limit)
      return std::nullopt;
    return std::pair(static_cast<std::uint32_t>(*first), static_cast<std::uint32_t>(*second));
  }

  absl::Status ReadForbidden(const toml::table& root) {
    constexpr std::array<std::string_view, 2> kKeys = {"from", "to"};
    const toml::node* list = root.get("forbid");
    if (list == nullptr) return absl::OkStatus();
    if (!list->is_array())
      return TomlError(LineOf(*list), "write each entry as a [[forbid]] table");
    for (const toml::node& element : *list->as_array()) {
      const toml::table* table = element.as_table();
      if (table == nullptr)
        return TomlError(LineOf(element), "write each entry as a [[forbid]] table");
      if (absl::Status status = CheckKeys(*table, kKeys, "[[forbid]]"); !status.ok()) return status;
      const auto from = NodesFrom(*table, "from");
      if (!from.ok()) return from.status();
      const auto to = NodesFrom(*table, "to");
      if (!to.ok()) return to.status();
      const std::size_t before = forbidden_.size();
      for (const NodeIndex sender : *from)
        for (const LinkIndex link : topology_.OutLinks(sender))
          if (to->contains(topology_.link(link).to)) forbidden_.insert(link);
      if (forbidden_.size() == before)
        return TomlError(LineOf(element),
                         "forbid: there is no such link, or it is forbidden twice");
    }
    forbidden_line_ = LineOf(*list);
    return absl::OkStatus();
  }

  absl::StatusOr<std::set<NodeIndex>> NodesFrom(const toml::table& table,
                                                std::string_view key) const {
    const toml::node* node = table.get(key);
    if (node == nullptr)
      return TomlError(LineOf(table), fmt::format("forbid: '{}' is missing", key));
    std::set<NodeIndex> nodes;
    const auto add = [&](const toml::node& name) {
      const auto text = name.value_exact<std::string>();
      const auto found = text ? topology_.FindNode(*text) : std::nullopt;
      if (found) nodes.insert(*found);
      return found ? absl::OkStatus()
                   : TomlError(LineOf(name), fmt::format("forbid: {} has no node '{}'",
                                                         Printable(topology_.name(), 64),
                                                         Printable(text.value_or("?"), 64)));
    };
    if (!node->is_array()) {
      if (absl::Status status = add(*node); !status.ok()) return status;
      return nodes;
    }
    for (const toml::node& name : *node->as_array())
      if (absl::Status status = add(name); !status.ok()) return status;
    return nodes;
  }

  absl::StatusOr<Topology> Remaining() const {
    if (forbidden_.empty()) return topology_;
    TopologyParts parts = topology_.parts();
    parts.links.clear();
    for (std::uint32_t i = 0; i < topology_.links().size(); ++i)
      if (!forbidden_.contains(LinkIndex{i})) parts.links.push_back(topology_.link(LinkIndex{i}));
    absl::StatusOr<Topology> remaining = Topology::Create(std::move(parts));
    if (!remaining.ok())
      return TomlError(forbidden_line_, fmt::format("forbid: without these links {}",
                                                    std::string(remaining.status().message())));
    return remaining;
  }

  static constexpr std::uint32_t kNoGroup = static_cast<std::uint32_t>(-1);

  const Topology& topology_;
  SketchRules rules_;
  std::uint32_t places_ = 0;  // in the largest group
  std::set<LinkIndex> forbidden_;
  std::uint32_t forbidden_line_ = 0;
};

}  // namespace

absl::StatusOr<TopologySketch> ParseSketchToml(std::string_view text, const Topology& topology) {
  if (text.size() > kSketchTextBytesMax)
    return absl::InvalidArgumentError(fmt::format("the sketch has {} bytes; at most {} are allowed",
                                                  text.size(), kSketchTextBytesMax));
  try {
    const toml::table root = toml::parse(text);
    return SketchTomlReader(topology).Read(root);
  } catch (const toml::parse_error& error) {
    return TomlError(error.source().begin.line, error.description());
  }
}

}  // namespace phub::plan
