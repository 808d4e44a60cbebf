// A topology: who exchanges (members), what lies between them (plain and aggregating switches) and
// the directed links with their bandwidth and latency. Immutable once created; any thread may read.
//
// Invariants of every Topology: names are unique; a link has two different ends, at most one link
// leads from a node to another (parallel cables are one link of their summed bandwidth), every
// capacity is positive, and every member reaches every other member. Sizes are within the limits
// below, so that no sum over a topology can overflow 63 bits.
//
// Bandwidth is counted in whole numbers. `unit_capacity` is the capacity of one *unit link*: on
// torus:4x4 every link is one; on racks:4x8@3 a host's link is one and an uplink is 8/3, so
// unit_capacity is 3 and the uplinks' capacity is 8. A unit link carries `unit_bytes_per_s`.
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

// 0-based, in the order in which a topology names them.
using NodeIndex = Id<struct NodeIndexTag, std::uint32_t>;
using LinkIndex = Id<struct LinkIndexTag, std::uint32_t>;

inline constexpr std::size_t kMembersMax = 4096;
inline constexpr std::size_t kNodesMax = 16384;
inline constexpr std::size_t kLinksMax = 1u << 18;
inline constexpr std::int64_t kCapacityMax = std::int64_t{1} << 31;  // of one link, in units
inline constexpr std::int64_t kLatencyNsMax = 60'000'000'000;        // a minute
inline constexpr std::int64_t kUnitBytesPerSecondMax = std::int64_t{1} << 50;
inline constexpr std::int64_t kDefaultUnitBytesPerSecond = 12'500'000'000;  // 100 Gbit/s
inline constexpr std::int64_t kDefaultLatencyNs = 500;

enum class NodeKind : std::uint8_t {
  kMember,      // contributes, sums, and gets every result; can be a home
  kAggregator,  // a switch that sums what comes in and multiplies what goes out
  kSwitch,      // a switch that only forwards
};
std::string_view KindName(NodeKind kind);  // "member" "aggregator" "switch"
std::optional<NodeKind> ParseKind(std::string_view text);

// Where a generator would draw a node; only pictures use it.
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
  std::int64_t capacity = 1;  // in 1/unit_capacity of a unit link
  std::int64_t latency_ns = 0;
};

struct TopologyParts {
  std::string name;
  std::vector<Node> nodes;
  std::vector<Link> links;
  std::int64_t unit_capacity = 1;
  std::int64_t unit_bytes_per_s = kDefaultUnitBytesPerSecond;
  // Members forward what is not for them, as the routers of a torus do. Hosts do not.
  bool members_forward = false;
};

class Topology {
 public:
  // Refuses parts that break an invariant; the message names the node or the link ("m1->m2").
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

  // Members in the order of their nodes: a member's place in it is its rank in the exchange.
  std::span<const NodeIndex> members() const { return members_; }
  bool IsMember(NodeIndex index) const { return node(index).kind == NodeKind::kMember; }
  bool HasAggregators() const { return has_aggregators_; }
  // Rank of a member; of any other node its index after all members, so that it is unique too.
  std::uint32_t RankOf(NodeIndex index) const { return rank_of_[index.value]; }

  std::span<const LinkIndex> OutLinks(NodeIndex index) const;
  std::span<const LinkIndex> InLinks(NodeIndex index) const;
  std::optional<LinkIndex> FindLink(NodeIndex from, NodeIndex to) const;
  std::optional<NodeIndex> FindNode(std::string_view name) const;
  // The link back, if there is one of the same capacity.
  std::optional<LinkIndex> MirrorOf(LinkIndex index) const;
  bool IsSymmetric() const { return is_symmetric_; }  // every link has a mirror
  // The same nodes and link indices, every link turned round.
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
  std::vector<std::uint32_t> out_start_, in_start_;  // node -> first place in the above
  std::unordered_map<std::string, NodeIndex> node_by_name_;
  std::unordered_map<std::uint64_t, LinkIndex> link_by_ends_;
};

}  // namespace phub::plan
