#include "common/plan/sketches/sketch_rules.h"

#include <algorithm>
#include <limits>
#include <string>

#include "common/base/check.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

// Checks each edge, and the order of edges on each path.
class CrossingChecker {
 public:
  CrossingChecker(const Topology& topology, const Forest& forest, const SketchRules& rules)
      : topology_(topology), forest_(forest), rules_(rules) {}

  absl::Status Check() {
    if (rules_.group_of.empty()) return absl::OkStatus();
    for (const bool reduces : {false, true}) {
      orders_.assign(forest_.paths.size(), {});
      for (std::size_t tree = 0; tree < forest_.trees.size(); ++tree)
        for (const Edge& edge : reduces ? forest_.trees[tree].reduce : forest_.trees[tree].gather)
          if (absl::Status status = CheckEdge(tree, reduces, edge); !status.ok()) return status;
      if (!rules_.own_first) continue;
      for (std::size_t path = 0; path < orders_.size(); ++path)
        if (absl::Status status = CheckOrder(orders_[path], reduces); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();
  // Steps on one path of crossings.
  struct Order {
    std::uint32_t own_first = kNever, own_last = 0;
    std::uint32_t others_first = kNever, others_last = 0;
    const Edge* own = nullptr;  // one of them
    std::size_t tree = 0;
  };

  absl::Status At(std::size_t tree, bool reduces, const Edge& edge, std::string_view rule) const {
    return absl::InvalidArgumentError(
        fmt::format("{}: {}", DescribeEdge(topology_, forest_, tree, reduces, edge), rule));
  }

  absl::Status CheckEdge(std::size_t tree, bool reduces, const Edge& edge) {
    for (const NodeIndex end : {edge.from, edge.to})
      if (!topology_.IsMember(end))
        return At(tree, reduces, edge,
                  "the sketch has rules about members of groups, so switches must not sum");
    const std::uint32_t home = topology_.RankOf(forest_.trees[tree].home);
    std::uint32_t from = topology_.RankOf(edge.from);
    bool crosses = false;
    for (const LinkIndex link : forest_.paths[edge.path.value]) {
      const NodeIndex node = topology_.link(link).to;
      if (!topology_.IsMember(node)) continue;
      const std::uint32_t to = topology_.RankOf(node);
      const std::string_view fault = FaultOf(home, from, to, reduces);
      if (!fault.empty()) return At(tree, reduces, edge, fault);
      crosses |= rules_.IsCrossing(from, to);
      from = to;
    }
    if (crosses) Note(tree, reduces, edge);
    return absl::OkStatus();
  }

  std::string_view FaultOf(std::uint32_t home, std::uint32_t from, std::uint32_t to,
                           bool reduces) const {
    if (!rules_.MaySend(from, to))
      return "the sketch forbids transfers between these members of different groups";
    if (!rules_.MayCarry(home, from, to, reduces))
      return "the sketch does not let this sender send the data of this home to other groups";
    return "";
  }

  void Note(std::size_t tree, bool reduces, const Edge& edge) {
    Order& order = orders_[edge.path.value];
    const NodeIndex home = forest_.trees[tree].home;
    const bool is_own = home == (reduces ? edge.to : edge.from);
    std::uint32_t& first = is_own ? order.own_first : order.others_first;
    std::uint32_t& last = is_own ? order.own_last : order.others_last;
    first = std::min(first, edge.step);
    last = std::max(last, edge.step);
    if (!is_own) return;
    order.own = &edge;
    order.tree = tree;
  }

  absl::Status CheckOrder(const Order& order, bool reduces) const {
    if (order.own_first == kNever || order.others_first == kNever) return absl::OkStatus();
    if (reduces ? order.own_first > order.others_last : order.own_last < order.others_first)
      return absl::OkStatus();
    return At(order.tree, reduces, *order.own,
              reduces ? "the sketch demands that partial sums for the receiver come last"
                      : "the sketch demands that the sender's own result comes first");
  }

  const Topology& topology_;
  const Forest& forest_;
  const SketchRules& rules_;
  std::vector<Order> orders_;  // by path
};

absl::Status CheckTreeCount(const Topology& topology, const Forest& forest, std::uint32_t count) {
  std::vector<std::uint32_t> trees_of(topology.members().size(), 0);
  for (const Tree& tree : forest.trees) {
    ++trees_of[topology.RankOf(tree.home)];
    if (Wide{tree.share} * static_cast<std::int64_t>(forest.trees.size()) != forest.share_unit)
      return absl::InvalidArgumentError(
          fmt::format("a tree of {} has a share of {}/{}; the sketch demands equal shares",
                      topology.node(tree.home).name, tree.share, forest.share_unit));
  }
  for (std::size_t rank = 0; rank < trees_of.size(); ++rank)
    if (trees_of[rank] != count)
      return absl::InvalidArgumentError(
          fmt::format("{} is the home of {} tree(s); the sketch demands {} for each member",
                      topology.node(topology.members()[rank]).name, trees_of[rank], count));
  return absl::OkStatus();
}

// A tree as numbers, with ranks replaced by their images. Equal trees have equal numbers.
std::vector<std::uint64_t> NumbersOf(const Topology& topology, const Tree& tree,
                                     const std::vector<std::uint32_t>& image_of) {
  const auto image = [&](NodeIndex node) -> std::uint64_t {
    return topology.IsMember(node) ? image_of[topology.RankOf(node)] : topology.RankOf(node);
  };
  std::vector<std::uint64_t> numbers = {image(tree.home), static_cast<std::uint64_t>(tree.share)};
  for (const auto* edges : {&tree.reduce, &tree.gather}) {
    const auto first = static_cast<std::ptrdiff_t>(numbers.size());
    for (const Edge& edge : *edges) {
      // Steps have 22 bits and nodes 15: common/plan/forest.h, topology.h.
      numbers.push_back(image(edge.from) << 42 | image(edge.to) << 22 | edge.step);
    }
    std::sort(numbers.begin() + first, numbers.end());
    numbers.push_back(std::numeric_limits<std::uint64_t>::max());
  }
  return numbers;
}

absl::Status CheckSymmetry(const Topology& topology, const Forest& forest,
                           const Rotation& rotation) {
  std::vector<std::uint32_t> same, rotated;
  for (std::uint32_t rank = 0; rank < topology.members().size(); ++rank) {
    same.push_back(rank);
    rotated.push_back(Rotated(rotation, rank));
  }
  std::multiset<std::vector<std::uint64_t>> trees;
  for (const Tree& tree : forest.trees) trees.insert(NumbersOf(topology, tree, same));
  for (const Tree& tree : forest.trees) {
    const auto found = trees.find(NumbersOf(topology, tree, rotated));
    if (found == trees.end())
      return absl::InvalidArgumentError(fmt::format(
          "the sketch demands symmetry: rotated by {} in blocks of {} ranks, a tree of {} is no "
          "tree of the plan",
          rotation.offset, rotation.block, topology.node(tree.home).name));
    trees.erase(found);
  }
  return absl::OkStatus();
}

}  // namespace

bool SketchRules::IsEmpty() const {
  const bool allows_crossings =
      group_of.empty() || (!pairs && !carries && may_return && !own_first);
  return allows_crossings && rotations.empty() && trees_per_member == 0 &&
         preference == PlanPreference::kAny;
}

bool SketchRules::MaySend(std::uint32_t from, std::uint32_t to) const {
  if (!IsCrossing(from, to)) return true;
  return !pairs || pairs->contains({place_of[from], place_of[to]});
}

bool SketchRules::MayCarry(std::uint32_t home, std::uint32_t from, std::uint32_t to,
                           bool reduces) const {
  if (!IsCrossing(from, to)) return true;
  if (!MaySend(from, to)) return false;
  if (!may_return && group_of[home] == group_of[reduces ? from : to]) return false;
  if (!carries) return true;
  const auto list = carries->find(place_of[from]);
  return list != carries->end() && list->second.contains(place_of[home]);
}

void SetGroups(SketchRules& rules, std::uint32_t members, std::uint32_t size) {
  PHUB_CHECK(size > 0);
  for (std::uint32_t rank = 0; rank < members; ++rank) {
    rules.group_of.push_back(rank / size);
    rules.place_of.push_back(rank % size);
  }
}

std::uint32_t Rotated(const Rotation& rotation, std::uint32_t rank) {
  const std::uint32_t begin = rank / rotation.block * rotation.block;
  return begin + (rank - begin + rotation.offset) % rotation.block;
}

bool IsInvariant(const SketchRules& rules, const std::vector<std::uint32_t>& image_of) {
  if (rules.group_of.empty()) return true;
  std::map<std::uint32_t, std::uint32_t> group_images, group_origins;
  std::set<std::pair<std::uint32_t, std::uint32_t>> places;  // and their images
  for (std::uint32_t rank = 0; rank < image_of.size(); ++rank) {
    const std::uint32_t group = rules.group_of[rank], image = rules.group_of[image_of[rank]];
    if (group_images.try_emplace(group, image).first->second != image ||
        group_origins.try_emplace(image, group).first->second != group)
      return false;
    places.emplace(rules.place_of[rank], rules.place_of[image_of[rank]]);
  }
  const auto sends = [&](std::uint32_t from, std::uint32_t to) {
    return !rules.pairs || rules.pairs->contains({from, to});
  };
  const auto carries = [&](std::uint32_t sender, std::uint32_t home) {
    if (!rules.carries) return true;
    const auto list = rules.carries->find(sender);
    return list != rules.carries->end() && list->second.contains(home);
  };
  if (!rules.pairs && !rules.carries) return true;
  for (const auto& [a, a_image] : places)
    for (const auto& [b, b_image] : places)
      if (sends(a, b) != sends(a_image, b_image) || carries(a, b) != carries(a_image, b_image))
        return false;
  return true;
}

absl::Status CheckRules(const Topology& topology, const Forest& forest, const SketchRules& rules) {
  if (absl::Status status = CrossingChecker(topology, forest, rules).Check(); !status.ok())
    return status;
  if (rules.trees_per_member > 0)
    if (absl::Status status = CheckTreeCount(topology, forest, rules.trees_per_member);
        !status.ok())
      return status;
  for (const Rotation& rotation : rules.rotations)
    if (absl::Status status = CheckSymmetry(topology, forest, rotation); !status.ok())
      return status;
  return absl::OkStatus();
}

}  // namespace phub::plan
