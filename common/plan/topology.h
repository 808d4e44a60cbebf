// A topology: members, which exchange data; plain and aggregating switches; and directed links with
// bandwidth and latency. Immutable; any thread.
//
// Invariants:
//  - names are unique;
//  - a link connects two different nodes, and there is at most one link from a node to another
//    (parallel cables are one link with the sum of their bandwidths);
//  - every capacity is positive, and every member reaches every other member;
//  - sizes are within the limits below, so that no sum over a topology exceeds 63 bits.
//
// Bandwidths are integers. `unit_capacity` is the capacity of a *unit link*, which has a bandwidth
// of `unit_bytes_per_s`. On torus:4x4 every link is a unit link. On racks:4x8@3 a host's link is a
// unit link and an uplink has 8/3 of that: unit_capacity is 3 and an uplink's capacity is 8.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/plan/rational.h"

namespace phub::plan {

// 0-based, in the order in which the topology lists them.
using NodeIndex = Id<struct NodeIndexTag, std::uint32_t>;
using LinkIndex = Id<struct LinkIndexTag, std::uint32_t>;

// In tables of numbers (of nodes, links, ranks, steps): none.
inline constexpr std::uint32_t kNoIndex = ~std::uint32_t{0};

inline constexpr std::size_t kMembersMax = 4096;
inline constexpr std::size_t kNodesMax = 16384;
inline constexpr std::size_t kLinksMax = 1u << 18;
inline constexpr std::int64_t kCapacityMax = std::int64_t{1} << 31;  // of one link
inline constexpr std::int64_t kLatencyNsMax = 60'000'000'000;        // 1 minute
inline constexpr std::int64_t kUnitBytesPerSecondMax = std::int64_t{1} << 50;
inline constexpr std::int64_t kDefaultUnitBytesPerSecond = 12'500'000'000;  // 100 Gbit/s
inline constexpr std::int64_t kDefaultLatencyNs = 500;

enum class NodeKind : std::uint8_t {
  kMember,      // contributes, sums, and receives every result; can be a home
  kAggregator,  // a switch that sums and multicasts
  kSwitch,      // a switch that only forwards
};
std::string_view KindName(NodeKind kind);  // "member" "aggregator" "switch"
std::optional<NodeKind> ParseKind(std::string_view text);

// Coordinates of a node in pictures.
struct Place {
  double x = 0;
  double y = 0;
};

struct Node {
  std::string name;
  NodeKind kind = NodeKind::kMember;
  std::optional<Place> place = std::nullopt;
};

struct Link {
  NodeIndex from;
  NodeIndex to;
  std::int64_t capacity = 1;  // bandwidth, in 1/unit_capacity of a unit link
  std::int64_t latency_ns = 0;
};

struct TopologyParts {
  std::string name;
  std::vector<Node> nodes;
  std::vector<Link> links;
  std::int64_t unit_capacity = 1;
  std::int64_t unit_bytes_per_s = kDefaultUnitBytesPerSecond;
  // Whether members forward traffic for other members, as in a torus. Hosts do not.
  bool members_forward = false;
};

class Topology {
 public:
  // Fails if the parts violate an invariant. The message names the node or the link ("m1->m2").
  static absl::StatusOr<Topology> Create(TopologyParts parts);

  const std::string& name() const { return parts_.name; }
  std::span<const Node> nodes() const { return parts_.nodes; }
  std::span<const Link> links() const { return parts_.links; }
  const Node& node(NodeIndex index) const { return parts_.nodes[index.value]; }
  const Link& link(LinkIndex index) const { return parts_.links[index.value]; }
  std::int64_t unit_capacity() const { return parts_.unit_capacity; }
  std::int64_t unit_bytes_per_s() const { return parts_.unit_bytes_per_s; }
  bool members_forward() const { return parts_.members_forward; }
  const TopologyParts& parts() const { return parts_; }

  // Members in the order of nodes. A member's index in this list is its rank.
  std::span<const NodeIndex> members() const { return members_; }
  bool IsMember(NodeIndex index) const { return node(index).kind == NodeKind::kMember; }
  bool HasAggregators() const { return has_aggregators_; }
  // A member's rank. Other nodes have unique numbers after those of all members.
  std::uint32_t RankOf(NodeIndex index) const { return rank_of_[index.value]; }

  std::span<const LinkIndex> OutLinks(NodeIndex index) const;
  std::span<const LinkIndex> InLinks(NodeIndex index) const;
  std::optional<LinkIndex> FindLink(NodeIndex from, NodeIndex to) const;
  std::optional<NodeIndex> FindNode(std::string_view name) const;
  // The link in the opposite direction, if there is one with the same capacity.
  std::optional<LinkIndex> MirrorOf(LinkIndex index) const;
  bool IsSymmetric() const { return is_symmetric_; }  // every link has a mirror
  // The same nodes and link indices, with every link reversed.
  Topology Reversed() const;

  // In unit links.
  Rational CapacityOf(LinkIndex index) const;
  double BytesPerSecond(LinkIndex index) const;
  std::string LinkName(LinkIndex index) const;  // "m1->m2"

 private:
  Topology() = default;
  absl::Status Check() const;
  absl::Status CheckLinks() const;
  absl::Status CheckReachability() const;
  void Index();

  TopologyParts parts_;
  std::vector<NodeIndex> members_;
  std::vector<std::uint32_t> rank_of_;
  bool has_aggregators_ = false;
  bool is_symmetric_ = false;
  std::vector<LinkIndex> out_links_, in_links_;      // grouped by node
  std::vector<std::uint32_t> out_start_, in_start_;  // node -> first index in out_links_, in_links_
  std::unordered_map<std::string, NodeIndex> node_by_name_;
  std::unordered_map<std::uint64_t, LinkIndex> link_by_ends_;
};

}  // namespace phub::plan
