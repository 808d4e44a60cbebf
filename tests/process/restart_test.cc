// Jobs with policy wait: workers are killed at random instants and restarted, or stopped and
// replaced, or lose their sockets. The final parameters must equal those of an undisturbed run bit
// for bit. PHUB_TEST_LONG=1 kills hundreds of times, in more layouts; PHUB_KILL_SEED=n runs one
// seed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/process/rack_process.h"
#include "tests/process/training_run.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kKillsPerRun = 6;
constexpr DurationNs kPatience = 60 * kSecond;  // much longer than a run takes

// The program that trains, and its transport and daemons.
struct Layout {
  const char* name;
  std::string transport;
  std::size_t daemons = 1;  // in each rack
  std::size_t racks = 1;
  std::uint32_t world_size = 3;
  std::string plan = {};
  std::uint64_t iterations = 8000;
  const char* cores = "2";
};

class Restart : public ::testing::TestWithParam<Layout> {
 protected:
  Restart()
      : rack_(GetParam().daemons * GetParam().racks,
              {"--cores", GetParam().cores, "--pin", "off", "--shm",
               GetParam().transport == "tcp" ? "off" : "on"},
              GetParam().racks > 1 ? RackProcess::Kind::kManyRacks : RackProcess::Kind::kOneRack,
              /*aggregator_count=*/0, GetParam().racks > 1 ? GetParam().daemons : 1) {}
  void SetUp() override { ASSERT_TRUE(rack_.serving()) << rack_.Outputs(); }

  // Across several racks, the job's name determines the trees of each chunk, and so the bits.
  TrainingOptions OptionsOf(const std::string& job, std::uint64_t iterations) const {
    const Layout& layout = GetParam();
    TrainingOptions options = {.endpoints = {},
                               .job = layout.racks > 1 ? "across" : job,
                               .transport = layout.transport,
                               .world_size = layout.world_size,
                               .iterations = iterations,
                               .plan = layout.plan};
    for (std::size_t rack = 0; rack < layout.racks; ++rack) {
      options.endpoints.push_back(rack_.endpoint(rack * layout.daemons));
    }
    return options;
  }
  // Runs the job undisturbed to learn the expected bits, if no serial run computes them.
  void LearnBits(TrainingOptions& options) {
    if (GetParam().racks <= 2) return;
    if (!undisturbed_) undisturbed_.emplace(options);
    ASSERT_EQ(undisturbed_->Finish(kPatience), "") << rack_.Outputs();
    options.expected = undisturbed_->SavedBy(0);
  }
  // Runs one training with kills, and counts them. Returns the problem, if any.
  std::string Kill(std::uint64_t seed, std::uint32_t& killed, std::uint32_t& resumed);

  RackProcess rack_;
  std::optional<TrainingRun> undisturbed_;
};

std::string Restart::Kill(std::uint64_t seed, std::uint32_t& killed, std::uint32_t& resumed) {
  SeededRandom random(seed);
  TrainingOptions options = OptionsOf(fmt::format("kill-{}", seed), GetParam().iterations);
  LearnBits(options);
  TrainingRun run(options);
  std::uint32_t of_run = 0;
  const auto kill_one = [&](std::uint32_t rank) {
    run.KillAndRestart(rank);
    ++of_run;
  };
  const auto some_time = [&](std::uint64_t milliseconds_max) {
    Sleep(static_cast<DurationNs>(random.Below(milliseconds_max * 1000)) * kMicrosecond);
  };
  while (of_run < kKillsPerRun) {
    some_time(200);
    // Disturbs joining too; then training, which needs a while to start.
    while (of_run > 0 && run.Tenths() < 1 && !run.AnyEnded()) some_time(10);
    // A worker that is killed after it has left cannot be replaced, because the job has ended.
    if (run.Tenths() >= 7 || run.AnyEnded()) break;
    const auto rank = static_cast<std::uint32_t>(random.Below(run.world_size()));
    kill_one(rank);
    if (random.Chance(1, 4)) kill_one((rank + 1) % run.world_size());
    if (random.Chance(1, 4)) {  // sometimes kills the new process while it joins or resumes
      some_time(80);
      kill_one(rank);
    }
  }
  const std::string problem = run.Finish(kPatience);
  killed += of_run;
  resumed += run.resumed_count();
  return problem;
}

TEST_P(Restart, KilledAtRandomInstantsTheBitsAreThoseOfAnUndisturbedRun) {
  std::uint32_t killed = 0;
  std::uint32_t resumed = 0;
  if (const char* one = std::getenv("PHUB_KILL_SEED")) {
    EXPECT_EQ(Kill(std::strtoull(one, nullptr, 10), killed, resumed), "") << rack_.Outputs();
    return;
  }
  const std::uint32_t kills = std::getenv("PHUB_TEST_LONG") != nullptr ? 60 : kKillsPerRun;
  // Until enough were killed, and enough of them in the training: how many a run kills while it
  // starts depends on how busy the machine is.
  for (std::uint64_t seed = 1; killed < kills || resumed * 4 < kills; ++seed) {
    ASSERT_LT(seed, 4 * kills) << "trainings end before their workers are killed: " << killed
                               << " killed, " << resumed << " resumed";
    ASSERT_EQ(Kill(seed, killed, resumed), "") << "reproduce with: PHUB_KILL_SEED=" << seed << "\n"
                                               << rack_.Outputs();
  }
  for (std::size_t daemon = 0; daemon < rack_.size(); ++daemon)
    EXPECT_TRUE(rack_.daemon(daemon).IsRunning());
}

TEST_P(Restart, AStoppedWorkerThatWasReplacedChangesNothingWhenItGoesOn) {
  TrainingOptions options = OptionsOf("zombie", GetParam().iterations * 3 / 2);
  LearnBits(options);
  TrainingRun run(options);
  while (run.Tenths() < 1) {
    ASSERT_FALSE(run.AnyEnded()) << run.worker(1).Outputs();
    Sleep(5 * kMillisecond);
  }
  Process zombie = run.StopAndReplace(1);
  ASSERT_TRUE(run.worker(1).WaitForOutput("resumed at iteration", 10 * kSecond))
      << run.worker(1).Outputs();
  EXPECT_FALSE(run.AnyEnded());
  zombie.Signal(SIGCONT);
  EXPECT_EQ(zombie.Wait(10 * kSecond), Exit::WithCode(1)) << zombie.Outputs();
  EXPECT_THAT(zombie.StandardError(), HasSubstr(options.job));
  EXPECT_EQ(run.Finish(kPatience), "") << zombie.Outputs();
}

// Each takes four to ten CPU seconds. The first four have every transport, one and two daemons,
// one, two and three racks.
std::vector<Layout> Layouts() {
  std::vector<Layout> layouts = {
      {.name = "shmOver2", .transport = "shm", .daemons = 2},
      {.name = "tcpOver1", .transport = "tcp"},
      {"tcpAcross3Racks", "tcp", 1, 3, 3, "ring", 3000, "1"},
      {"shmAcross2RacksOver2", "shm", 2, 2, 4, "sharded-star", 3000, "1"}};
  if (std::getenv("PHUB_TEST_LONG") == nullptr) return layouts;
  layouts.push_back({.name = "shmOver1", .transport = "shm"});
  layouts.push_back({.name = "tcpOver2", .transport = "tcp", .daemons = 2});
  layouts.push_back({"tcpAcross2Racks", "tcp", 1, 2, 4, "ring", 3000, "1"});
  layouts.push_back({"shmAcross3Racks", "shm", 1, 3, 6, "sharded-star", 2000, "1"});
  return layouts;
}

INSTANTIATE_TEST_SUITE_P(Racks, Restart, ::testing::ValuesIn(Layouts()),
                         [](const auto& parameters) { return std::string(parameters.param.name); });

}  // namespace
}  // namespace phub::process
