#include "common/plan/forest_json.h"

#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "common/base/printable.h"
#include "common/plan/json_reader.h"
#include "common/plan/rational.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

constexpr std::string_view kPlanFormat = "phub.plan.v1";
constexpr std::string_view kGroupPlanFormat = "phub.plan.v2";

std::string QuotedJson(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

class ForestReader {
 public:
  ForestReader(const Topology& topology, PlanScope scope) : topology_(topology), scope_(scope) {}

  absl::StatusOr<Forest> Read(const Json& root) {
    if (absl::Status status =
            CheckObject(root, "", {"format", "planner", "topology", "members", "paths", "trees"});
        !status.ok())
      return status;
    const absl::StatusOr<std::string> format = StringField(root, "", "format");
    if (!format.ok()) return format.status();
    if (absl::Status status = ReadGroup(root, *format); !status.ok()) return status;
    absl::StatusOr<std::string> planner = StringField(root, "", "planner");
    if (!planner.ok()) return planner.status();
    absl::StatusOr<std::string> name = StringField(root, "", "topology");
    if (!name.ok()) return name.status();
    forest_.planner = Printable(*planner, 200);
    forest_.topology = Printable(*name, 200);
    const absl::StatusOr<const Json*> paths = ArrayField(root, "", "paths");
    if (!paths.ok()) return paths.status();
    const absl::StatusOr<const Json*> trees = ArrayField(root, "", "trees");
    if (!trees.ok()) return trees.status();
    if (absl::Status status = ReadPaths(**paths); !status.ok()) return status;
    if (absl::Status status = ReadTrees(**trees); !status.ok()) return status;
    return std::move(forest_);
  }

 private:
  absl::Status ReadGroup(const Json& root, const std::string& format) {
    const bool is_group = format == kGroupPlanFormat;
    if (!is_group && format != kPlanFormat)
      return JsonError("format", fmt::format("'{}' is not {} or {}", Printable(format, 64),
                                             kPlanFormat, kGroupPlanFormat));
    if (is_group != root.contains("members"))
      return JsonError("members", fmt::format("only plans with the format {} have this field, and "
                                              "they must have it",
                                              kGroupPlanFormat));
    if (!is_group) return absl::OkStatus();
    const absl::StatusOr<const Json*> members = ArrayField(root, "", "members");
    if (!members.ok()) return members.status();
    if (scope_ == PlanScope::kAllMembers)
      return JsonError("members",
                       fmt::format("the plan is for a group of {} of the {} members; daemons run "
                                   "only plans for all members",
                                   (*members)->size(), topology_.members().size()));
    if ((*members)->size() < 2 || (*members)->size() > topology_.members().size())
      return JsonError("members", fmt::format("the group must have from 2 to {} members",
                                              topology_.members().size()));
    for (std::size_t i = 0; i < (*members)->size(); ++i) {
      const absl::StatusOr<NodeIndex> member = Node((**members)[i], fmt::format("members[{}]", i));
      if (!member.ok()) return member.status();
      forest_.group.push_back(*member);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<NodeIndex> Node(const Json& name, std::string_view where) const {
    if (!name.is_string()) return JsonError(where, "expected the name of a node");
    const auto& text = name.get_ref<const std::string&>();
    const auto node = topology_.FindNode(text);
    if (!node)
      return JsonError(where,
                       fmt::format("{} has no node '{}'; the plan is probably for another topology",
                                   topology_.name(), Printable(text, 64)));
    return *node;
  }

  absl::Status ReadPaths(const Json& list) {
    std::size_t link_count = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string where = fmt::format("paths[{}]", i);
      if (!list[i].is_array() || list[i].size() < 2)
        return JsonError(where, "expected a list of at least two nodes");
      link_count += list[i].size() - 1;
      if (link_count > kPathLinksMax)
        return JsonError(where, fmt::format("the paths have more than {} links", kPathLinksMax));
      Path path;
      for (std::size_t hop = 0; hop + 1 < list[i].size(); ++hop) {
        const absl::StatusOr<NodeIndex> from = Node(list[i][hop], where);
        if (!from.ok()) return from.status();
        const absl::StatusOr<NodeIndex> to = Node(list[i][hop + 1], where);
        if (!to.ok()) return to.status();
        const auto link = topology_.FindLink(*from, *to);
        if (!link)
          return JsonError(
              where,
              fmt::format("{} has no link {}->{}; the plan is probably for another topology",
                          topology_.name(), topology_.node(*from).name, topology_.node(*to).name));
        path.push_back(*link);
      }
      forest_.paths.push_back(std::move(path));
    }
    return absl::OkStatus();
  }

  absl::Status ReadEdges(const Json& list, const std::string& list_name, std::vector<Edge>& edges) {
    edge_count_ += list.size();
    if (edge_count_ > kEdgesMax)
      return JsonError(list_name, fmt::format("the trees have more than {} edges", kEdgesMax));
    edges.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string where = fmt::format("{}[{}]", list_name, i);
      if (absl::Status status = CheckObject(list[i], where, {"from", "to", "step", "path"});
          !status.ok())
        return status;
      for (const char* field : {"from", "to"})
        if (!list[i].contains(field))
          return JsonError(where, fmt::format("field '{}' must be a string", field));
      const absl::StatusOr<NodeIndex> from = Node(list[i]["from"], where);
      if (!from.ok()) return from.status();
      const absl::StatusOr<NodeIndex> to = Node(list[i]["to"], where);
      if (!to.ok()) return to.status();
      const absl::StatusOr<std::int64_t> step =
          IntegerField(list[i], where, "step", 0, kStepsMax - 1);
      if (!step.ok()) return step.status();
      const absl::StatusOr<std::int64_t> path = IntegerField(
          list[i], where, "path", 0, static_cast<std::int64_t>(forest_.paths.size()) - 1);
      if (!path.ok()) return path.status();
      edges.push_back({*from, *to, static_cast<std::uint32_t>(*step),
                       PathIndex{static_cast<std::uint32_t>(*path)}});
    }
    return absl::OkStatus();
  }

  absl::Status ReadTrees(const Json& list) {
    std::vector<Rational> shares;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string where = fmt::format("trees[{}]", i);
      if (absl::Status status = CheckObject(list[i], where, {"home", "share", "reduce", "gather"});
          !status.ok())
        return status;
      if (!list[i].contains("home")) return JsonError(where, "field 'home' must be a string");
      const absl::StatusOr<NodeIndex> home = Node(list[i]["home"], where);
      if (!home.ok()) return home.status();
      const absl::StatusOr<std::string> share_text = StringField(list[i], where, "share");
      if (!share_text.ok()) return share_text.status();
      const auto share = Rational::Parse(*share_text);
      if (!share || share->numerator() < 1 || *share > Rational(1))
        return JsonError(
            where, "field 'share' must be a fraction above 0 and at most 1, such as \"1/16\"");
      const auto unit = CommonMultiple(forest_.share_unit, share->denominator(), kShareUnitMax);
      if (!unit) return JsonError(where, "the shares have no common denominator below 2^40");
      forest_.share_unit = *unit;
      shares.push_back(*share);
      Tree& tree = forest_.trees.emplace_back();
      tree.home = *home;
      for (const bool reduces : {true, false}) {
        const char* field = reduces ? "reduce" : "gather";
        const absl::StatusOr<const Json*> edges = ArrayField(list[i], where, field);
        if (!edges.ok()) return edges.status();
        if (absl::Status status = ReadEdges(**edges, fmt::format("{}.{}", where, field),
                                            reduces ? tree.reduce : tree.gather);
            !status.ok())
          return status;
      }
    }
    for (std::size_t i = 0; i < shares.size(); ++i)
      forest_.trees[i].share =
          shares[i].numerator() * (forest_.share_unit / shares[i].denominator());
    return absl::OkStatus();
  }

  const Topology& topology_;
  PlanScope scope_;
  Forest forest_;
  std::size_t edge_count_ = 0;
};

void WriteEdges(const std::vector<std::string>& names, const char* field,
                const std::vector<Edge>& edges, fmt::memory_buffer& out) {
  fmt::format_to(std::back_inserter(out), ",\n   \"{}\": [", field);
  for (std::size_t i = 0; i < edges.size(); ++i)
    fmt::format_to(std::back_inserter(out),
                   "{}\n    {{\"from\": {}, \"to\": {}, \"step\": {}, \"path\": {}}}",
                   i == 0 ? "" : ",", names[edges[i].from.value], names[edges[i].to.value],
                   edges[i].step, edges[i].path.value);
  fmt::format_to(std::back_inserter(out), "]");
}

}  // namespace

std::string ForestToJson(const Topology& topology, const Forest& forest) {
  std::vector<std::string> names;  // quoted
  for (const Node& node : topology.nodes()) names.push_back(QuotedJson(node.name));
  fmt::memory_buffer out;
  const auto end = [&] { return std::back_inserter(out); };
  fmt::format_to(end(), "{{\"format\": \"{}\",\n \"planner\": {},\n \"topology\": {},\n",
                 forest.group.empty() ? kPlanFormat : kGroupPlanFormat, QuotedJson(forest.planner),
                 QuotedJson(forest.topology));
  for (std::size_t i = 0; i < forest.group.size(); ++i)
    fmt::format_to(end(), "{}{}{}", i == 0 ? " \"members\": [" : ", ", names[forest.group[i].value],
                   i + 1 == forest.group.size() ? "],\n" : "");
  fmt::format_to(end(), " \"paths\": [");
  for (std::size_t i = 0; i < forest.paths.size(); ++i) {
    fmt::format_to(end(), "{}\n  [", i == 0 ? "" : ",");
    for (std::size_t hop = 0; hop < forest.paths[i].size(); ++hop) {
      const Link& link = topology.link(forest.paths[i][hop]);
      if (hop == 0) fmt::format_to(end(), "{}", names[link.from.value]);
      fmt::format_to(end(), ", {}", names[link.to.value]);
    }
    fmt::format_to(end(), "]");
  }
  fmt::format_to(end(), "],\n \"trees\": [");
  for (std::size_t i = 0; i < forest.trees.size(); ++i) {
    const Tree& tree = forest.trees[i];
    const auto share = Rational::Make(tree.share, forest.share_unit);
    fmt::format_to(end(), "{}\n  {{\"home\": {}, \"share\": \"{}\"", i == 0 ? "" : ",",
                   names[tree.home.value], share ? share->ToString() : "0");
    WriteEdges(names, "reduce", tree.reduce, out);
    WriteEdges(names, "gather", tree.gather, out);
    fmt::format_to(end(), "}}");
  }
  fmt::format_to(end(), "]}}\n");
  return fmt::to_string(out);
}

absl::StatusOr<Forest> ParseForestJson(const Topology& topology, std::string_view text,
                                       PlanScope scope) {
  const absl::StatusOr<Json> root = ParseJson(text, kPlanTextBytesMax);
  if (!root.ok()) return root.status();
  return ForestReader(topology, scope).Read(*root);
}

}  // namespace phub::plan
