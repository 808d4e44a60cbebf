// A forest is a plan: it describes how members of a topology exchange a group of chunks.
//
// Every tree carries a share of the data; the shares sum to 1. Each tree has two phases:
//  - reduce: partial sums flow up an in-tree to the tree's home, a member that runs the optimizer;
//  - gather: the result flows down an out-tree to every member.
// The forest of a group of members is the same for the members of the group only.
// A vertex of a tree is a member or an aggregating switch. An edge connects two vertices over a
// physical path of links. Its step is the time slot in which it is sent. Steps are counted from 0
// through both phases. An edge's step is greater than those of the edges that it waits for. A
// reduce edge waits for all edges into its sender. A gather edge waits for the gather edge into its
// sender, or at the home, for all reduce edges into the home.
//
// A Forest is plain data and may be invalid; common/plan/verifier.h checks it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/topology.h"

namespace phub::plan {

using PathIndex = Id<struct PathIndexTag, std::uint32_t>;  // into Forest::paths
using Path = std::vector<LinkIndex>;                       // from sender to receiver, not empty

// Limits of every forest. With them, no sum over a forest exceeds 63 bits.
inline constexpr std::size_t kEdgesMax = std::size_t{1} << 22;  // all trees and both phases
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
  std::string topology;  // the topology's name, for display only
  std::int64_t share_unit = 1;
  std::vector<Path> paths;
  std::vector<Tree> trees;
  // The members that exchange data, in ascending order of ranks. Empty: all members. Other members
  // are not vertices of trees.
  std::vector<NodeIndex> group = {};
};

// The members that exchange data.
std::span<const NodeIndex> MembersOf(const Topology& topology, const Forest& forest);

std::uint32_t StepCount(const Forest& forest);  // 1 + the greatest step
std::size_t EdgeCount(const Forest& forest);
// Whether switches are vertices of the forest's trees.
bool SumsInSwitches(const Topology& topology, const Forest& forest);
// "tree 3 (home m2), reduce edge m1->m4 at step 2"
std::string DescribeEdge(const Topology& topology, const Forest& forest, std::size_t tree,
                         bool reduces, const Edge& edge);

// Adds paths to a forest and gives equal paths the same index. One thread. The forest must outlive
// the table.
class PathTable {
 public:
  explicit PathTable(Forest& forest) : forest_(forest) {}
  PathIndex Intern(Path path);

 private:
  Forest& forest_;
  std::map<Path, PathIndex> known_;
};

}  // namespace phub::plan
