#include "common/plan/planners/symmetry.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

constexpr std::size_t kTriesMax = 1u << 16;  // of images of switches, for one rotation

// Extends a permutation of the members to the switches, by backtracking.
class Extension {
 public:
  Extension(const Topology& topology, Permutation images)
      : topology_(topology), images_(std::move(images)), is_used_(topology.nodes().size(), false) {
    for (std::uint32_t i = 0; i < topology.nodes().size(); ++i) {
      if (topology.IsMember(NodeIndex{i})) {
        is_used_[images_[i].value] = true;
      } else {
        switches_.push_back(NodeIndex{i});
      }
    }
  }

  std::optional<Permutation> Find() {
    for (const NodeIndex member : topology_.members())
      if (!Agrees(member)) return std::nullopt;
    if (!Place(0)) return std::nullopt;
    return images_;
  }

 private:
  // Whether the node's links and those of its image agree, where both ends have images.
  bool Agrees(NodeIndex node) const {
    const NodeIndex image = images_[node.value];
    if (topology_.node(node).kind != topology_.node(image).kind ||
        topology_.OutLinks(node).size() != topology_.OutLinks(image).size() ||
        topology_.InLinks(node).size() != topology_.InLinks(image).size())
      return false;
    const auto agree = [&](LinkIndex index) {
      const Link& link = topology_.link(index);
      const NodeIndex from = images_[link.from.value], to = images_[link.to.value];
      if (from.value == kNoIndex || to.value == kNoIndex) return true;
      const std::optional<LinkIndex> other = topology_.FindLink(from, to);
      return other && topology_.link(*other).capacity == link.capacity &&
             topology_.link(*other).latency_ns == link.latency_ns;
    };
    const auto out = topology_.OutLinks(node), in = topology_.InLinks(node);
    return std::all_of(out.begin(), out.end(), agree) && std::all_of(in.begin(), in.end(), agree);
  }

  // The possible images, in the order of nodes. If neighbours have images, only neighbours of the
  // image with the fewest.
  std::vector<NodeIndex> CandidatesFor(NodeIndex node) const {
    std::span<const LinkIndex> fewest;
    bool is_outgoing = false, is_limited = false;
    const auto consider = [&](NodeIndex neighbour, bool outgoing) {
      const NodeIndex image = images_[neighbour.value];
      if (image.value == kNoIndex) return;
      const auto links = outgoing ? topology_.OutLinks(image) : topology_.InLinks(image);
      if (is_limited && links.size() >= fewest.size()) return;
      fewest = links;
      is_outgoing = outgoing;
      is_limited = true;
    };
    for (const LinkIndex link : topology_.InLinks(node)) consider(topology_.link(link).from, true);
    for (const LinkIndex link : topology_.OutLinks(node)) consider(topology_.link(link).to, false);
    if (!is_limited) return switches_;
    std::vector<NodeIndex> candidates;
    for (const LinkIndex index : fewest) {
      const Link& link = topology_.link(index);
      const NodeIndex candidate = is_outgoing ? link.to : link.from;
      if (!topology_.IsMember(candidate)) candidates.push_back(candidate);
    }
    std::sort(candidates.begin(), candidates.end());
    return candidates;
  }

  bool Place(std::size_t index) {
    if (index == switches_.size()) return true;
    const NodeIndex node = switches_[index];
    const std::vector<NodeIndex> candidates = CandidatesFor(node);
    // Itself first, for switches that all members reach equally.
    const auto first = static_cast<std::size_t>(
        std::lower_bound(candidates.begin(), candidates.end(), node) - candidates.begin());
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const NodeIndex image = candidates[(first + i) % candidates.size()];
      if (is_used_[image.value]) continue;
      if (++tries_ > kTriesMax) return false;
      images_[node.value] = image;
      is_used_[image.value] = true;
      if (Agrees(node) && Place(index + 1)) return true;
      is_used_[image.value] = false;
    }
    images_[node.value] = NodeIndex{kNoIndex};
    return false;
  }

  const Topology& topology_;
  Permutation images_;  // kNoIndex: none yet
  std::vector<bool> is_used_;
  std::vector<NodeIndex> switches_;
  std::size_t tries_ = 0;
};

class Finder {
 public:
  // `rules` may be null.
  Finder(const Topology& topology, const SketchRules* rules) : topology_(topology), rules_(rules) {
    Permutation identity;
    for (std::uint32_t i = 0; i < topology.nodes().size(); ++i) identity.push_back(NodeIndex{i});
    group_ = {identity};
  }

  Symmetry Find() {
    const auto count = static_cast<std::uint32_t>(topology_.members().size());
    // Short offsets first: they generate the largest groups.
    for (std::uint32_t offset = 1; offset < count; ++offset) {
      if (count % offset != 0) continue;
      for (std::uint32_t block = 2 * offset; block <= count; block += offset) {
        if (count % block != 0 || group_.size() == count) continue;
        const std::optional<Permutation> found = ExtensionOf({offset, block});
        if (found) Offer(*found);
      }
    }
    return Result();
  }

  absl::StatusOr<Symmetry> Declared(const std::vector<Rotation>& rotations) {
    for (const Rotation& rotation : rotations) {
      const auto fail = [&](std::string_view reason) {
        return absl::InvalidArgumentError(fmt::format("the rotation by {} in blocks of {} ranks {}",
                                                      rotation.offset, rotation.block, reason));
      };
      if (rotation.block == 0 || topology_.members().size() % rotation.block != 0)
        return fail(fmt::format("does not fit to {} ranks", topology_.members().size()));
      const std::optional<Permutation> found = ExtensionOf(rotation);
      if (!found) return fail("changes links, bandwidths, latencies or the rules of the sketch");
      if (!Offer(*found))
        return fail(
            "and the others move some member to itself in several ways; symmetries must "
            "move every member to another one");
    }
    return Result();
  }

 private:
  std::optional<Permutation> ExtensionOf(const Rotation& rotation) const {
    Permutation images(topology_.nodes().size(), NodeIndex{kNoIndex});
    std::vector<std::uint32_t> image_of;
    const auto members = topology_.members();
    for (std::uint32_t rank = 0; rank < members.size(); ++rank) {
      image_of.push_back(Rotated(rotation, rank));
      images[members[rank].value] = members[image_of.back()];
    }
    if (rules_ != nullptr && !IsInvariant(*rules_, image_of)) return std::nullopt;
    return Extension(topology_, std::move(images)).Find();
  }

  bool MovesAllMembers(const Permutation& element) const {
    return std::all_of(topology_.members().begin(), topology_.members().end(),
                       [&](NodeIndex member) { return element[member.value] != member; });
  }

  // Adds the generator if the group that it generates with the others moves all members. Such a
  // group has at most one element for every member.
  bool Offer(const Permutation& generator) {
    if (std::find(group_.begin(), group_.end(), generator) != group_.end()) return true;
    std::vector<Permutation> generators = generators_;
    generators.push_back(generator);
    std::vector<Permutation> group = {group_.front()};
    std::set<Permutation> known(group.begin(), group.end());
    for (std::size_t i = 0; i < group.size(); ++i) {
      for (const Permutation& next : generators) {
        Permutation product;
        product.reserve(next.size());
        for (const NodeIndex node : group[i]) product.push_back(next[node.value]);
        if (!known.insert(product).second) continue;
        if (!MovesAllMembers(product) || group.size() == topology_.members().size()) return false;
        group.push_back(std::move(product));
      }
    }
    generators_ = std::move(generators);
    group_ = std::move(group);
    return true;
  }

  Symmetry Result() {
    Symmetry symmetry;
    symmetry.orbit_of.assign(topology_.links().size(), kNoIndex);
    symmetry.uses.assign(topology_.links().size(), 0);
    std::uint32_t orbits = 0;
    for (std::uint32_t i = 0; i < topology_.links().size(); ++i) {
      const Link& link = topology_.link(LinkIndex{i});
      const bool is_new = symmetry.orbit_of[i] == kNoIndex;
      for (const Permutation& element : group_) {
        const LinkIndex image =
            *topology_.FindLink(element[link.from.value], element[link.to.value]);
        if (is_new) symmetry.orbit_of[image.value] = orbits;
        if (image.value == i) ++symmetry.uses[i];
      }
      if (is_new) ++orbits;
    }
    std::vector<bool> is_covered(topology_.nodes().size(), false);
    for (std::uint32_t rank = 0; rank < topology_.members().size(); ++rank) {
      const NodeIndex member = topology_.members()[rank];
      if (is_covered[member.value]) continue;
      symmetry.representatives.push_back(rank);
      for (const Permutation& element : group_) is_covered[element[member.value].value] = true;
    }
    symmetry.elements = std::move(group_);
    return symmetry;
  }

  const Topology& topology_;
  const SketchRules* rules_;
  std::vector<Permutation> generators_;
  std::vector<Permutation> group_;
};

}  // namespace

Symmetry FindSymmetry(const Topology& topology) { return Finder(topology, nullptr).Find(); }

absl::StatusOr<Symmetry> SymmetryUnder(const Topology& topology, const SketchRules& rules) {
  Finder finder(topology, &rules);
  if (rules.rotations.empty()) return finder.Find();
  return finder.Declared(rules.rotations);
}

}  // namespace phub::plan
