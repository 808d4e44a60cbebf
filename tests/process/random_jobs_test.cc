// Random jobs over real daemons: libphub's workers as threads, racks of one to three phubd, all
// types, operations and optimizers, lanes over shared memory and tcp, pushes in random orders.
// After every round the bits must match the serial oracle (random_job.h). Runs 150 jobs, or
// 10,000 with PHUB_TEST_LONG=1, or PHUB_JOBS_COUNT=n. PHUB_JOBS_SEED=n runs one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/process/rack_process.h"
#include "tests/process/random_worker.h"

namespace phub::process {
namespace {

class RandomJobs : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::size_t daemons = 1; daemons <= 3; ++daemons) {
      racks_.push_back(std::make_unique<RackProcess>(
          daemons, std::vector<std::string>{"--cores", "2", "--pin", "off", "--liveness-timeout",
                                            kPatientLiveness}));
      ASSERT_TRUE(racks_.back()->serving()) << racks_.back()->Outputs();
    }
  }

  std::string Run(std::uint64_t seed) {
    const RandomJob job = DrawJob(seed);
    const RackProcess& rack = *racks_[job.daemons - 1];
    // Workers may connect to any of the rack's daemons.
    return RunRanks(job,
                    [&](std::uint32_t rank) { return rack.endpoint((seed + rank) % job.daemons); });
  }

  std::vector<std::unique_ptr<RackProcess>> racks_;
};

TEST_F(RandomJobs, HaveTheBitsOfTheSerialOracle) {
  if (const char* one = std::getenv("PHUB_JOBS_SEED")) {
    EXPECT_EQ(Run(std::strtoull(one, nullptr, 10)), "");
    return;
  }
  std::uint64_t count = std::getenv("PHUB_TEST_LONG") != nullptr ? 10'000 : 150;
  if (const char* text = std::getenv("PHUB_JOBS_COUNT")) count = std::strtoull(text, nullptr, 10);
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    ASSERT_EQ(Run(seed), "") << "reproduce with: PHUB_JOBS_SEED=" << seed;
  }
}

}  // namespace
}  // namespace phub::process
