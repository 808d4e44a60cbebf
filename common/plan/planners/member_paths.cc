#include "common/plan/planners/member_paths.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace phub::plan {
namespace {

// The search from one member.
class PathSearch {
 public:
  PathSearch(const Topology& topology, std::uint32_t from, std::size_t limit)
      : topology_(topology),
        from_(from),
        limit_(limit),
        distance_(topology.nodes().size(), kNoIndex),
        arrivals_(topology.nodes().size()) {}

  std::vector<MemberPath> Run() {
    Spread();
    for (std::uint32_t rank = 0; rank < topology_.members().size(); ++rank) {
      const NodeIndex member = topology_.members()[rank];
      if (rank == from_ || distance_[member.value] == kNoIndex) continue;
      to_ = rank;
      left_ = limit_;
      Path reversed;
      Follow(member, reversed);
    }
    return std::move(paths_);
  }

 private:
  void Spread() {
    const NodeIndex root = topology_.members()[from_];
    distance_[root.value] = 0;
    std::vector<NodeIndex> queue{root};
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const NodeIndex node = queue[head];
      if (node != root && topology_.IsMember(node)) continue;
      for (const LinkIndex link : topology_.OutLinks(node)) {
        const NodeIndex next = topology_.link(link).to;
        if (distance_[next.value] == kNoIndex) {
          distance_[next.value] = distance_[node.value] + 1;
          queue.push_back(next);
        }
        if (distance_[next.value] == distance_[node.value] + 1)
          arrivals_[next.value].push_back(link);
      }
    }
  }

  // Walks back to the sender over all shortest paths. The first choice depends on the pair.
  void Follow(NodeIndex node, Path& reversed) {
    if (distance_[node.value] == 0) {
      --left_;
      paths_.push_back({to_, Path(reversed.rbegin(), reversed.rend())});
      return;
    }
    const std::vector<LinkIndex>& arrivals = arrivals_[node.value];
    for (std::size_t i = 0; i < arrivals.size() && left_ > 0; ++i) {
      const LinkIndex link = arrivals[(from_ + to_ + i) % arrivals.size()];
      reversed.push_back(link);
      Follow(topology_.link(link).from, reversed);
      reversed.pop_back();
    }
  }

  const Topology& topology_;
  std::uint32_t from_;
  std::uint32_t to_ = 0;
  std::size_t limit_;
  std::size_t left_ = 0;
  std::vector<std::uint32_t> distance_;
  std::vector<std::vector<LinkIndex>> arrivals_;  // by node: last links of shortest paths to it
  std::vector<MemberPath> paths_;
};

}  // namespace

std::vector<MemberPath> MemberPaths(const Topology& topology, std::uint32_t from,
                                    std::size_t limit) {
  return PathSearch(topology, from, limit).Run();
}

}  // namespace phub::plan
