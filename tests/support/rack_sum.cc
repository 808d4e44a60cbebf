#include "tests/support/rack_sum.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/core/exchange/rack_plan.h"
#include "server/placement/placement.h"

namespace phub::oracle {
namespace {

constexpr std::uint64_t kLandingAlignment = 64;  // trees are chosen by the landing memory of chunks

RackSum SumAt(const plan::Topology& topology, const plan::Tree& tree, plan::NodeIndex node) {
  RackSum sum;
  sum.has_ranks = topology.IsMember(node);
  if (sum.has_ranks) sum.rack = topology.RankOf(node);
  std::vector<plan::Edge> edges;
  for (const plan::Edge& edge : tree.reduce) {
    if (edge.to == node) edges.push_back(edge);
  }
  std::stable_sort(edges.begin(), edges.end(),
                   [](const plan::Edge& a, const plan::Edge& b) { return a.step < b.step; });
  for (const plan::Edge& edge : edges) {
    sum.children.push_back(SumAt(topology, tree, edge.from));
  }
  return sum;
}

// The core loop of a rack that owns each chunk of each key.
std::vector<std::vector<std::uint32_t>> CoresOf(const SummedJob& job) {
  std::vector<std::vector<std::uint32_t>> cores;
  std::vector<server::PlacementBin> bins = server::BinsForJob(job.core_count, job.name);
  for (std::size_t begin = 0; begin < job.keys.size();) {
    std::vector<std::uint64_t> bytes;  // for the keys that are added together
    for (std::size_t k = begin; k < job.keys.size(); ++k) {
      if (job.keys[k].batch != job.keys[begin].batch) break;
      bytes.push_back(job.keys[k].element_count * numeric::ElementBytes(job.keys[k].type));
    }
    for (const auto& key : server::PlaceKeys(bins, bytes, job.chunk_bytes)) {
      cores.emplace_back();
      for (const server::BinIndex bin : key) cores.back().push_back(bin.value);
    }
    begin += bytes.size();
  }
  return cores;
}

RackSum Reordered(RackSum sum, Order order) {
  for (RackSum& child : sum.children) child = Reordered(std::move(child), order);
  if (order == Order::kChildrenReversed) std::reverse(sum.children.begin(), sum.children.end());
  if (order == Order::kOwnRanksLast && sum.has_ranks && !sum.children.empty()) {
    sum.children.push_back({.has_ranks = true, .rack = sum.rack, .children = {}});
    sum.has_ranks = false;
  }
  return sum;
}

}  // namespace

std::vector<std::vector<RackSum>> SumsOf(const plan::Topology& topology, const plan::Forest& forest,
                                         const SummedJob& job, Order order) {
  const auto rack_plan = server::exchange::MakeRackPlan(topology, forest, server::RackIndex{0},
                                                        /*aggregators=*/true);
  PHUB_CHECK(rack_plan.ok(), "planner={} topology={}", forest.planner, topology.name());
  std::vector<server::exchange::TreeChooser> choosers;  // by core loop of a rack
  for (std::uint32_t core = 0; core < job.core_count; ++core) {
    choosers.emplace_back(*rack_plan, CoreIndex{core});
  }
  const std::vector<std::vector<std::uint32_t>> cores = CoresOf(job);
  std::vector<std::vector<RackSum>> sums;
  for (std::size_t k = 0; k < job.keys.size(); ++k) {
    const SummedKey& key = job.keys[k];
    sums.emplace_back();
    const std::uint64_t in_chunk = job.chunk_bytes / numeric::ElementBytes(key.type);
    for (std::uint64_t done = 0; done < key.element_count; done += in_chunk) {
      const std::uint64_t count = std::min(in_chunk, key.element_count - done);
      const std::uint64_t bytes =
          count * numeric::ElementBytes(numeric::AccumulationType(key.type));
      const std::uint64_t landing =
          (bytes + kLandingAlignment - 1) / kLandingAlignment * kLandingAlignment;
      std::size_t index = choosers[cores[k][done / in_chunk]].Next(landing);
      if (order == Order::kNextTree) index = (index + 1) % forest.trees.size();
      const plan::Tree& tree = forest.trees[index];
      sums.back().push_back(Reordered(SumAt(topology, tree, tree.home), order));
    }
  }
  return sums;
}

}  // namespace phub::oracle
