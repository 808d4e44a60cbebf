#include "common/plan/planners/symmetry.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

namespace phub::plan {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
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
      if (from.value == kNone || to.value == kNone) return true;
      const std::optional<LinkIndex> other = topology_.FindLink(from, to);
      return other && topology_.link(*other).capacity == link.capacity &&
             topology_.link(*other).latency_ns == link.latency_ns;
    };
    const auto out = topology_.OutLinks(node), in = topology_.InLinks(node);
    return std::all_of(out.begin(), out.end(), agree) && std::all_of(in.begin(), in.end(), agree);
  }

  bool Place(std::size_t index) {
    if (index == switches_.size()) return true;
    const NodeIndex node = switches_[index];
    for (std::size_t i = 0; i < switches_.size(); ++i) {
      // Itself first, for switches that all members reach equally.
      const NodeIndex image = switches_[(index + i) % switches_.size()];
      if (is_used_[image.value]) continue;
      if (++tries_ > kTriesMax) return false;
      images_[node.value] = image;
      is_used_[image.value] = true;
      if (Agrees(node) && Place(index + 1)) return true;
      is_used_[image.value] = false;
    }
    images_[node.value] = NodeIndex{kNone};
    return false;
  }

  const Topology& topology_;
  Permutation images_;  // kNone: none yet
  std::vector<bool> is_used_;
  std::vector<NodeIndex> switches_;
  std::size_t tries_ = 0;
};

class Finder {
 public:
  explicit Finder(const Topology& topology) : topology_(topology) {
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
        const std::optional<Permutation> rotation = Rotation(offset, block);
        if (rotation) Offer(*rotation);
      }
    }
    return Result();
  }

 private:
  std::optional<Permutation> Rotation(std::uint32_t offset, std::uint32_t block) const {
    Permutation images(topology_.nodes().size(), NodeIndex{kNone});
    const auto members = topology_.members();
    for (std::uint32_t rank = 0; rank < members.size(); ++rank) {
      const std::uint32_t begin = rank / block * block;
      images[members[rank].value] = members[begin + (rank - begin + offset) % block];
    }
    return Extension(topology_, std::move(images)).Find();
  }

  bool MovesAllMembers(const Permutation& element) const {
    return std::all_of(topology_.members().begin(), topology_.members().end(),
                       [&](NodeIndex member) { return element[member.value] != member; });
  }

  // Adds the generator if the group that it generates with the others moves all members. Such a
  // group has at most one element for every member.
  void Offer(const Permutation& generator) {
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
        if (!MovesAllMembers(product) || group.size() == topology_.members().size()) return;
        group.push_back(std::move(product));
      }
    }
    generators_ = std::move(generators);
    group_ = std::move(group);
  }

  Symmetry Result() {
    Symmetry symmetry;
    symmetry.orbit_of.assign(topology_.links().size(), kNone);
    symmetry.uses.assign(topology_.links().size(), 0);
    std::uint32_t orbits = 0;
    for (std::uint32_t i = 0; i < topology_.links().size(); ++i) {
      const Link& link = topology_.link(LinkIndex{i});
      const bool is_new = symmetry.orbit_of[i] == kNone;
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
  std::vector<Permutation> generators_;
  std::vector<Permutation> group_;
};

}  // namespace

Symmetry FindSymmetry(const Topology& topology) { return Finder(topology).Find(); }

}  // namespace phub::plan
