// A forest: how one group of chunks is exchanged between the members of a topology.
//
// Every tree carries a share of the data; the shares sum to 1. Up its in-tree (`reduce`) partial
// sums flow to the tree's home, a member, where the optimizer runs once; down its out-tree
// (`gather`) the result flows to every member. A vertex of a tree is a member or an aggregating
// switch. An edge leads from one vertex to another over a physical path of links, and has a step:
// the time slot in which it is sent. Steps are counted through both phases from 0, and an edge's
// step is greater than those of the edges it waits for (reduce: all edges into its sender; gather:
// the edge by which its sender got the result, at the home all reduce edges into it).
//
// A Forest is plain data and may be wrong; common/plan/verifier.h says whether it is right.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/topology.h"

namespace phub::plan {

using PathIndex = Id<struct PathIndexTag, std::uint32_t>;  // into Forest::paths
using Path = std::vector<LinkIndex>;                       // from sender to receiver, not empty

// No forest beyond these is built or read: with them no sum over a forest overflows 63 bits.
inline constexpr std::size_t kEdgesMax = std::size_t{1} << 22;  // of all trees, both phases
inline constexpr std::size_t kPathLinksMax = std::size_t{1} << 24;
inline constexpr std::uint32_t kStepsMax = 1u << 22;
inline constexpr std::int64_t kShareUnitMax = std::int64_t{1} << 40;

struct Edge {
  NodeIndex from;
  NodeIndex to;
  std::uint32_t step = 0;
  PathIndex path;
};

struct Tree {
  NodeIndex home;
  std::int64_t share = 0;  // in 1/share_unit of the data
  std::vector<Edge> reduce;
  std::vector<Edge> gather;
};

struct Forest {
  std::string planner;
  std::string topology;  // its name, for people; edges name links, which is what counts
  std::int64_t share_unit = 1;
  std::vector<Path> paths;
  std::vector<Tree> trees;
};

std::uint32_t StepCount(const Forest& forest);  // 1 + the greatest step
std::size_t EdgeCount(const Forest& forest);
// "tree 3 (home m2), reduce edge m1->m4 at step 2"
std::string DescribeEdge(const Topology& topology, const Forest& forest, std::size_t tree,
                         bool reduces, const Edge& edge);

// Gives equal paths one index. One thread; holds on to the forest it fills.
class PathTable {
 public:
  explicit PathTable(Forest& forest) : forest_(forest) {}
  PathIndex Intern(Path path);

 private:
  Forest& forest_;
  std::map<Path, PathIndex> known_;
};

}  // namespace phub::plan
