#include "common/plan/groups/leaf_spine.h"

#include <numeric>

#include "absl/status/status.h"
#include "common/plan/rational.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

class LeafFinder {
 public:
  explicit LeafFinder(const Topology& topology)
      : topology_(topology), leaf_at_(topology.nodes().size(), kNoIndex) {}

  absl::StatusOr<LeafSpine> Find() {
    if (!topology_.IsSymmetric())
      return Fault("a link has no mirror with the same bandwidth in the opposite direction");
    for (std::uint32_t i = 0; i < topology_.nodes().size(); ++i) {
      if (topology_.node(NodeIndex{i}).kind == NodeKind::kSwitch)
        return Fault(
            fmt::format("{} only forwards; it must sum (aggregators = [...], or the "
                        "option ,aggregate)",
                        topology_.node(NodeIndex{i}).name));
    }
    for (const NodeIndex member : topology_.members())
      if (absl::Status status = PlaceMember(member); !status.ok()) return status;
    if (absl::Status status = CheckMembersThatAreLeaves(); !status.ok()) return status;
    for (std::uint32_t i = 0; i < topology_.nodes().size(); ++i)
      if (leaf_at_[i] == kNoIndex && !topology_.IsMember(NodeIndex{i}))
        found_.spines.push_back(NodeIndex{i});
    if (absl::Status status = FindCables(); !status.ok()) return status;
    return std::move(found_);
  }

 private:
  absl::Status Fault(std::string_view reason) const {
    return absl::FailedPreconditionError(fmt::format(
        "{} is not a network of leaves and spines that sum: {}", topology_.name(), reason));
  }

  std::uint32_t LeafAt(NodeIndex node) {
    std::uint32_t& leaf = leaf_at_[node.value];
    if (leaf == kNoIndex) {
      leaf = static_cast<std::uint32_t>(found_.leaves.size());
      found_.leaves.push_back(node);
    }
    return leaf;
  }

  absl::Status PlaceMember(NodeIndex member) {
    const auto links = topology_.OutLinks(member);
    for (const LinkIndex link : links)
      if (topology_.IsMember(topology_.link(link).to))
        return Fault(fmt::format("members {} and {} are linked directly",
                                 topology_.node(member).name,
                                 topology_.node(topology_.link(link).to).name));
    if (links.size() == 1) {
      found_.leaf_of.push_back(LeafAt(topology_.link(links.front()).to));
      found_.member_capacity.push_back(topology_.link(links.front()).capacity);
    } else {
      found_.leaf_of.push_back(LeafAt(member));
      found_.member_capacity.push_back(0);
    }
    return absl::OkStatus();
  }

  // Their switches are spines, so these must not be leaves of other members.
  absl::Status CheckMembersThatAreLeaves() const {
    for (const NodeIndex leaf : found_.leaves) {
      if (!topology_.IsMember(leaf)) continue;
      for (const LinkIndex link : topology_.OutLinks(leaf))
        if (leaf_at_[topology_.link(link).to.value] != kNoIndex)
          return Fault(
              fmt::format("{} is linked to several switches, and {} is the only switch "
                          "of another member",
                          topology_.node(leaf).name, topology_.node(topology_.link(link).to).name));
    }
    return absl::OkStatus();
  }

  absl::Status FindCables() {
    if (found_.spines.empty() && found_.leaves.size() > 1)
      return Fault("it has no switch without members");
    found_.cables.resize(found_.leaves.size());
    for (std::size_t leaf = 0; leaf < found_.leaves.size(); ++leaf) {
      for (const NodeIndex spine : found_.spines) {
        const auto link = topology_.FindLink(found_.leaves[leaf], spine);
        if (!link)
          return Fault(fmt::format("{} has no link to {}", topology_.node(found_.leaves[leaf]).name,
                                   topology_.node(spine).name));
        found_.cables[leaf].push_back(topology_.link(*link).capacity);
      }
    }
    for (std::uint32_t leaf = 1; leaf < found_.leaves.size(); ++leaf) {
      const Wide whole = found_.CapacityToSpines(leaf), first = found_.CapacityToSpines(0);
      for (std::size_t spine = 0; spine < found_.spines.size(); ++spine)
        if (found_.cables[leaf][spine] * first != found_.cables[0][spine] * whole)
          return Fault(fmt::format(
              "{} and {} divide their bandwidth among the spines in "
              "different proportions",
              topology_.node(found_.leaves[0]).name, topology_.node(found_.leaves[leaf]).name));
    }
    return absl::OkStatus();
  }

  const Topology& topology_;
  std::vector<std::uint32_t> leaf_at_;  // by node
  LeafSpine found_;
};

}  // namespace

std::int64_t LeafSpine::CapacityToSpines(std::uint32_t leaf) const {
  return std::accumulate(cables[leaf].begin(), cables[leaf].end(), std::int64_t{0});
}

absl::StatusOr<LeafSpine> FindLeavesAndSpines(const Topology& topology) {
  return LeafFinder(topology).Find();
}

}  // namespace phub::plan
