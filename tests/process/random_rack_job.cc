#include "tests/process/random_rack_job.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/base/element_type.h"
#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "server/exchange/rack_plan.h"
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

}  // namespace

RandomJob DrawRackJob(std::uint64_t seed, std::uint32_t racks, const std::string& planner) {
  const auto topology = plan::Generate(fmt::format("switch:{}", racks));
  PHUB_CHECK(topology.ok());
  return DrawRackJob(seed, *topology, planner);
}

RandomJob DrawRackJob(std::uint64_t seed, const plan::Topology& topology,
                      const std::string& planner) {
  const plan::Planner* const found = plan::FindPlanner(planner);
  PHUB_CHECK(found != nullptr, "planner={}", planner);
  const auto forest = plan::MakePlan(*found, topology, {});
  PHUB_CHECK(forest.ok(), "planner={} topology={}", planner, topology.name());
  return DrawRackJob(seed, topology, *forest, planner);
}

RandomJob DrawRackJob(std::uint64_t seed, const plan::Topology& topology,
                      const plan::Forest& forest, const std::string& asked) {
  const auto racks = static_cast<std::uint32_t>(topology.members().size());
  const auto rack_plan = server::exchange::MakeRackPlan(topology, forest, server::RackIndex{0},
                                                        /*aggregators=*/true);
  PHUB_CHECK(rack_plan.ok());

  RandomJob job = DrawJob(seed);
  job.name = fmt::format("{}.{}.{}", forest.planner, racks, seed);
  job.racks = racks;
  job.plan = asked;
  job.restart = false;
  job.apply_iteration = false;
  job.clip_norm = 0.0;
  job.skip_nonfinite = false;
  job.troubles.clear();
  job.daemons = 1;
  job.world_size = racks * (1 + static_cast<std::uint32_t>(seed % 3));
  for (RandomKey& key : job.keys) {
    for (RandomRound& round : key.rounds) round.root %= job.world_size;
  }
  server::exchange::TreeChooser chooser(*rack_plan, CoreIndex{0});
  for (const RandomKey& key : job.keys) {
    std::vector<RackSum>& sums = job.sums.emplace_back();
    const std::uint64_t in_chunk = job.chunk_bytes / BytesOf(key.type);
    for (std::uint64_t done = 0; done < key.element_count; done += in_chunk) {
      const std::uint64_t count = std::min(in_chunk, key.element_count - done);
      const auto type = static_cast<numeric::ElementType>(key.type);
      const std::uint64_t bytes = count * numeric::ElementBytes(numeric::AccumulationType(type));
      const std::uint32_t tree = chooser.Next((bytes + 63) / 64 * 64);
      sums.push_back(SumAt(topology, forest.trees[tree], forest.trees[tree].home));
    }
  }
  Expect(job);
  return job;
}

std::string RunRanks(const RackProcess& racks, const RandomJob& job) {
  const std::uint32_t in_rack = job.world_size / job.racks;
  const std::string problem =
      RunRanks(job, [&](std::uint32_t rank) { return racks.endpoint(rank / in_rack); });
  return problem.empty() ? "" : problem + "\n" + racks.Outputs();
}

}  // namespace phub::process
