#include "tests/process/random_rack_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "common/base/check.h"
#include "common/base/element_type.h"
#include "common/plan/generators.h"
#include "common/plan/planners/planner.h"
#include "tests/process/random_worker.h"
#include "tests/support/rack_sum.h"

namespace phub::process {

std::uint64_t RackJobsPerPlanner() {
  if (std::getenv("PHUB_TEST_LONG") != nullptr) return 100;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 2;
#else
  return 4;
#endif
}

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
  RandomJob job = DrawJob(seed);
  job.name = fmt::format("{}.{}x{}.{}", forest.planner, racks, daemons, seed);
  job.racks = racks;
  job.plan = asked;
  job.restart = false;
  job.apply_iteration = false;
  job.clip_norm = 0.0;
  job.skip_nonfinite = false;
  job.sum_block = 0;
  job.troubles.clear();
  job.daemons = daemons;
  job.world_size = racks * (1 + static_cast<std::uint32_t>(seed % 3));
  for (RandomKey& key : job.keys) {
    for (RandomRound& round : key.rounds) round.root %= job.world_size;
  }
  oracle::SummedJob summed{
      .name = job.name, .core_count = daemons, .chunk_bytes = job.chunk_bytes, .keys = {}};
  for (const RandomKey& key : job.keys) {
    summed.keys.push_back(
        {static_cast<numeric::ElementType>(key.type), key.element_count, key.batch});
  }
  job.sums = oracle::SumsOf(topology, forest, summed);
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
