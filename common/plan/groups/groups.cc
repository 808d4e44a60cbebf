#include "common/plan/groups/groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "common/base/units.h"
#include "common/plan/simulator.h"
#include "common/plan/toml_reader.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

bool IsGroupName(std::string_view name) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= 64 && name.front() != '.' && name.front() != '-' &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

class GroupsTomlReader {
 public:
  GroupsTomlReader(const Topology& topology, std::int64_t bytes)
      : topology_(topology), bytes_(bytes) {}

  absl::StatusOr<std::vector<Group>> Read(const toml::table& root) {
    constexpr std::array<std::string_view, 1> kKeys = {"group"};
    if (absl::Status status = CheckKeys(root, kKeys, "a file of groups"); !status.ok())
      return status;
    const toml::array* list = root.get("group") ? root.get("group")->as_array() : nullptr;
    if (list == nullptr || list->empty())
      return absl::InvalidArgumentError("the file has no [[group]]");
    if (list->size() > kGroupsMax)
      return TomlError(LineOf(*list), fmt::format("there are {} groups; at most {} are allowed",
                                                  list->size(), kGroupsMax));
    for (const toml::node& element : *list) {
      if (!element.is_table())
        return TomlError(LineOf(element), "group: expected [[group]] with keys");
      if (absl::Status status = ReadGroup(*element.as_table()); !status.ok()) return status;
    }
    return std::move(groups_);
  }

 private:
  absl::Status ReadGroup(const toml::table& table) {
    constexpr std::array<std::string_view, 5> kKeys = {"name", "phase", "ranks", "members", "size"};
    if (absl::Status status = CheckKeys(table, kKeys, "[[group]]"); !status.ok()) return status;
    Group group;
    group.bytes = bytes_;
    for (absl::Status (GroupsTomlReader::*read)(const toml::table&, Group&) :
         {&GroupsTomlReader::ReadName, &GroupsTomlReader::ReadPhase, &GroupsTomlReader::ReadSize,
          &GroupsTomlReader::ReadRanks})
      if (absl::Status status = (this->*read)(table, group); !status.ok()) return status;
    groups_.push_back(std::move(group));
    return absl::OkStatus();
  }

  absl::Status ReadName(const toml::table& table, Group& group) {
    const toml::node* node = table.get("name");
    if (node == nullptr) return TomlError(LineOf(table), "[[group]] has no name");
    group.name = node->value_exact<std::string>().value_or("");
    if (!IsGroupName(group.name))
      return TomlError(LineOf(*node),
                       fmt::format("name '{}' must have from 1 to 64 letters, digits, '.', '_' or "
                                   "'-', and begin with a letter, a digit or '_'",
                                   Printable(group.name, 64)));
    if (!names_.insert(group.name).second)
      return TomlError(LineOf(*node), fmt::format("two groups have the name '{}'", group.name));
    return absl::OkStatus();
  }

  absl::Status ReadPhase(const toml::table& table, Group& group) {
    const toml::node* node = table.get("phase");
    if (node == nullptr) return absl::OkStatus();
    const std::string text = node->value_exact<std::string>().value_or("");
    for (const Phase phase : kPhases) {
      if (text != PhaseName(phase)) continue;
      group.phase = phase;
      return absl::OkStatus();
    }
    return TomlError(LineOf(*node), fmt::format("group '{}': phase must be tensor, pipeline or "
                                                "data, not '{}'",
                                                group.name, Printable(text, 64)));
  }

  absl::Status ReadSize(const toml::table& table, Group& group) {
    const toml::node* node = table.get("size");
    if (node == nullptr) return absl::OkStatus();
    const std::string text = node->value_exact<std::string>().value_or("");
    const auto bytes = ParseBytes(text);
    if (!bytes || *bytes < 1 || *bytes > static_cast<std::uint64_t>(kSizeBytesMax))
      return TomlError(LineOf(*node),
                       fmt::format("group '{}': size must be a text such as \"64MiB\", not '{}'",
                                   group.name, Printable(text, 64)));
    group.bytes = static_cast<std::int64_t>(*bytes);
    return absl::OkStatus();
  }

  absl::Status ReadRanks(const toml::table& table, Group& group) {
    const toml::node* ranks = table.get("ranks");
    const toml::node* members = table.get("members");
    if ((ranks == nullptr) == (members == nullptr))
      return TomlError(LineOf(table),
                       fmt::format("group '{}' needs ranks or members, not both", group.name));
    const toml::node& list = ranks != nullptr ? *ranks : *members;
    const std::string_view field = ranks != nullptr ? "ranks" : "members";
    if (!list.is_array() || list.as_array()->size() < 2)
      return TomlError(LineOf(list), fmt::format("group '{}': {} must be a list of at least two",
                                                 group.name, field));
    for (const toml::node& element : *list.as_array()) {
      const auto rank = ranks != nullptr ? RankFrom(element) : MemberFrom(element);
      if (!rank.ok())
        return TomlError(LineOf(element), fmt::format("group '{}': {}", group.name,
                                                      std::string(rank.status().message())));
      const auto [other, is_free] = taken_.try_emplace({group.phase, *rank}, group.name);
      if (!is_free)
        return TomlError(
            LineOf(element),
            fmt::format("group '{}': rank {} ({}) is already in group '{}'; groups of one "
                        "phase ({}) run at the same time and must not overlap",
                        group.name, *rank, topology_.node(topology_.members()[*rank]).name,
                        other->second, PhaseName(group.phase)));
      group.ranks.push_back(*rank);
    }
    std::sort(group.ranks.begin(), group.ranks.end());
    return absl::OkStatus();
  }

  absl::StatusOr<std::uint32_t> RankFrom(const toml::node& element) const {
    const auto rank = element.value_exact<std::int64_t>();
    const auto count = static_cast<std::int64_t>(topology_.members().size());
    if (!rank || *rank < 0 || *rank >= count)
      return absl::InvalidArgumentError(
          rank ? fmt::format("there is no rank {}; {} has ranks 0 to {}", *rank,
                             Printable(topology_.name(), 64), count - 1)
               : "ranks must be integers");
    return static_cast<std::uint32_t>(*rank);
  }

  absl::StatusOr<std::uint32_t> MemberFrom(const toml::node& element) const {
    const std::string name = element.value_exact<std::string>().value_or("?");
    const auto node = topology_.FindNode(name);
    if (!node || !topology_.IsMember(*node))
      return absl::InvalidArgumentError(fmt::format(
          "{} has no member '{}'", Printable(topology_.name(), 64), Printable(name, 64)));
    return topology_.RankOf(*node);
  }

  const Topology& topology_;
  const std::int64_t bytes_;
  std::vector<Group> groups_;
  std::set<std::string> names_;
  std::map<std::pair<Phase, std::uint32_t>, std::string> taken_;  // phase, rank -> group
};

}  // namespace

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kTensor: return "tensor";
    case Phase::kPipeline: return "pipeline";
    case Phase::kData: return "data";
  }
  return "?";
}

absl::StatusOr<std::vector<Group>> ParallelGroups(const Topology& topology,
                                                  const Parallelism& degrees, std::int64_t bytes) {
  const auto members = static_cast<std::int64_t>(topology.members().size());
  std::int64_t ranks = 1;
  for (const std::int64_t degree : {degrees.tensor, degrees.pipeline, degrees.data}) {
    if (degree < 1 || degree > members)
      return absl::InvalidArgumentError(
          fmt::format("--mp, --pp and --dp must be from 1 to {}, the number of members of {}, "
                      "not {}",
                      members, topology.name(), degree));
    ranks *= degree;
  }
  if (ranks < 2)
    return absl::InvalidArgumentError("--mp, --pp and --dp are all 1, so there are no groups");
  if (ranks > members)
    return absl::InvalidArgumentError(
        fmt::format("--mp {} x --pp {} x --dp {} needs {} ranks; {} has {} members", degrees.tensor,
                    degrees.pipeline, degrees.data, ranks, topology.name(), members));
  std::vector<Group> groups;
  // The groups of a phase have `degree` ranks, `stride` apart.
  const auto add = [&](Phase phase, std::int64_t degree, std::int64_t stride) {
    if (degree == 1) return;
    std::int64_t count = 0;
    for (std::int64_t first = 0; first < ranks; ++first) {
      if (first / stride % degree != 0) continue;
      Group group{fmt::format("{}{}", PhaseName(phase), count++), phase, {}, bytes};
      for (std::int64_t i = 0; i < degree; ++i)
        group.ranks.push_back(static_cast<std::uint32_t>(first + i * stride));
      groups.push_back(std::move(group));
    }
  };
  add(Phase::kTensor, degrees.tensor, 1);
  add(Phase::kPipeline, degrees.pipeline, degrees.tensor);
  add(Phase::kData, degrees.data, degrees.tensor * degrees.pipeline);
  return groups;
}

absl::StatusOr<std::vector<Group>> ParseGroupsToml(std::string_view text, const Topology& topology,
                                                   std::int64_t bytes) {
  if (text.size() > kGroupsTextBytesMax)
    return absl::InvalidArgumentError(fmt::format("the file has {} bytes; at most {} are allowed",
                                                  text.size(), kGroupsTextBytesMax));
  try {
    const toml::table root = toml::parse(text);
    return GroupsTomlReader(topology, bytes).Read(root);
  } catch (const toml::parse_error& error) {
    return TomlError(error.source().begin.line, error.description());
  }
}

}  // namespace phub::plan
