#include "tests/process/random_rack_job.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/base/element_type.h"
#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "server/exchange/rack_plan.h"
#include "server/placement/placement.h"
#include "tests/process/random_worker.h"

namespace phub::process {
namespace {

// Straight from the forest: what daemons make of it is what is tested.
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

std::uint64_t BytesOf(ElementType type) {
  return numeric::ElementBytes(static_cast<numeric::ElementType>(type));
}

// Which core loop of a rack owns each chunk of each key.
std::vector<std::vector<std::uint32_t>> CoresOf(const RandomJob& job) {
  std::vector<std::vector<std::uint32_t>> cores;
  std::vector<server::PlacementBin> bins = server::BinsForJob(job.daemons, job.name);
  for (std::size_t begin = 0; begin < job.keys.size();) {
    std::vector<std::uint64_t> bytes;  // of the keys that are added together
    for (std::size_t k = begin; k < job.keys.size(); ++k) {
      if (job.keys[k].batch != job.keys[begin].batch) break;
      bytes.push_back(job.keys[k].element_count * BytesOf(job.keys[k].type));
    }
    for (const auto& key : server::PlaceKeys(bins, bytes, job.chunk_bytes)) {
      cores.emplace_back();
      for (const server::BinIndex bin : key) cores.back().push_back(bin.value);
    }
    begin += bytes.size();
  }
  return cores;
}

}  // namespace

RandomJob DrawRackJob(std::uint64_t seed, std::uint32_t racks, const std::string& planner) {
  const auto topology = plan::Generate(fmt::format("switch:{}", racks));
  PHUB_CHECK(topology.ok());
  return DrawRackJob(seed, *topology, planner);
}

RandomJob DrawRackJob(std::uint64_t seed, const plan::Topology& topology,
                      const std::string& planner, std::uint32_t daemons) {
  const plan::Planner* const found = plan::FindPlanner(planner);
  PHUB_CHECK(found != nullptr, "planner={}", planner);
  const auto forest = plan::MakePlan(*found, topology, {});
  PHUB_CHECK(forest.ok(), "planner={} topology={}", planner, topology.name());
  return DrawRackJob(seed, topology, *forest, planner, daemons);
}

RandomJob DrawRackJob(std::uint64_t seed, const plan::Topology& topology,
                      const plan::Forest& forest, const std::string& asked, std::uint32_t daemons) {
  const auto racks = static_cast<std::uint32_t>(topology.members().size());
  const auto rack_plan = server::exchange::MakeRackPlan(topology, forest, server::RackIndex{0},
                                                        /*aggregators=*/true);
  PHUB_CHECK(rack_plan.ok());

  RandomJob job = DrawJob(seed);
  job.name = fmt::format("{}.{}x{}.{}", forest.planner, racks, daemons, seed);
  job.racks = racks;
  job.plan = asked;
  job.restart = false;
  job.apply_iteration = false;
  job.clip_norm = 0.0;
  job.skip_nonfinite = false;
  job.troubles.clear();
  job.daemons = daemons;
  job.world_size = racks * (1 + static_cast<std::uint32_t>(seed % 3));
  for (RandomKey& key : job.keys) {
    for (RandomRound& round : key.rounds) round.root %= job.world_size;
  }
  std::vector<server::exchange::TreeChooser> choosers;  // [core loop of a rack]
  for (std::uint32_t i = 0; i < daemons; ++i) choosers.emplace_back(*rack_plan, CoreIndex{i});
  const std::vector<std::vector<std::uint32_t>> placed = CoresOf(job);
  for (std::size_t k = 0; k < job.keys.size(); ++k) {
    const RandomKey& key = job.keys[k];
    std::vector<RackSum>& sums = job.sums.emplace_back();
    const std::uint64_t in_chunk = job.chunk_bytes / BytesOf(key.type);
    for (std::uint64_t done = 0; done < key.element_count; done += in_chunk) {
      const std::uint64_t count = std::min(in_chunk, key.element_count - done);
      const auto type = static_cast<numeric::ElementType>(key.type);
      const std::uint64_t bytes = count * numeric::ElementBytes(numeric::AccumulationType(type));
      const std::uint32_t core = placed[k][done / in_chunk];
      const std::uint32_t tree = choosers[core].Next((bytes + 63) / 64 * 64);
      sums.push_back(SumAt(topology, forest.trees[tree], forest.trees[tree].home));
    }
  }
  Expect(job);
  return job;
}

std::string RunRanks(const RackProcess& racks, const RandomJob& job) {
  const std::uint32_t in_rack = job.world_size / job.racks;
  PHUB_CHECK(job.daemons == racks.per_rack(), "job={} racks={}", job.daemons, racks.per_rack());
  const std::string problem = RunRanks(job, [&](std::uint32_t rank) {
    return racks.endpoint(rank / in_rack * job.daemons + (job.seed + rank) % job.daemons);
  });
  return problem.empty() ? "" : problem + "\n" + racks.Outputs();
}

}  // namespace phub::process
