// Checkpoints of jobs that span racks, with real daemons. A checkpoint contains every rack's homes,
// whichever rack's daemon receives the request. Loading it gives the same bits as an uninterrupted
// run. If a daemon dies during a save, no incomplete checkpoint remains.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "tests/process/rack_authority.h"
#include "tests/process/rack_process.h"
#include "tests/process/trainer.h"
#include "tests/process/training_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kRacks = 3;
constexpr std::uint32_t kRanks = 2 * kRacks;
constexpr DurationNs kPatience = 60 * kSecond;
constexpr std::uint64_t kRunning = 1500;  // iterations: long enough for a save during training

class RacksCheckpoint : public ::testing::Test {
 protected:
  explicit RacksCheckpoint(std::vector<std::string> more = {}, std::size_t aggregators = 0,
                           std::size_t daemons = 1)
      : racks_((kRacks + aggregators) * daemons, SmallAnd(std::move(more)),
               RackProcess::Kind::kManyRacks, aggregators, daemons) {}
  void SetUp() override { ASSERT_TRUE(racks_.serving()) << racks_.Outputs(); }

  static std::vector<std::string> SmallAnd(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--cores", "2", "--pin", "off"});
    return arguments;
  }
  JobOptions Options(const std::string& job, const std::string& plan) const {
    return {.job = job,
            .world_size = plan.empty() ? kRanks / 2 : kRanks,
            .chunk_bytes = chunk_bytes_,
            .plan = plan};
  }
  // Runs a job whose ranks are threads that run `body`, and returns each rank's problem. Without a
  // plan the job runs in rack 1 only.
  std::vector<std::string> OnEveryRank(JobOptions options, bool initialize,
                                       const std::function<std::string(Trainer&)>& body) {
    std::vector<std::string> results(options.world_size);
    std::vector<std::thread> threads;
    for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
      threads.emplace_back([&, options] {
        const std::size_t rack = options.plan.empty() ? 1 : options.rank / (kRanks / kRacks);
        auto trainer = Trainer::Start(racks_.endpoint(rack * racks_.per_rack()), options,
                                      {.initialize = initialize});
        results[options.rank] = trainer.ok() ? body(*trainer) : ToString(trainer.status());
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }
  static std::string Text(const Status& status) { return status.ok() ? "" : ToString(status); }

  // Expect: no rank had a problem, and all ranks have the same bytes, which are returned.
  Bytes Agreed(const std::vector<std::string>& problems, const std::vector<Bytes>& parameters) {
    for (const std::string& problem : problems) EXPECT_EQ(problem, "") << racks_.Outputs();
    // A job of one rack has fewer ranks.
    for (std::size_t rank = 0; rank < problems.size(); ++rank)
      EXPECT_EQ(parameters[rank], parameters[0]) << "rank " << rank;
    return parameters[0];
  }

  // Trains up to `iterations`. If `save_at` is not 0, rank `saver` saves after that iteration.
  Bytes Train(const std::string& plan, std::uint64_t iterations, std::uint64_t save_at = 0,
              std::uint32_t saver = 0) {
    std::vector<Bytes> parameters(kRanks);
    const auto problems =
        OnEveryRank(Options("training", plan), true, [&](Trainer& trainer) -> std::string {
          Status status = trainer.TrainUntil(save_at);
          if (status.ok()) status = trainer.job().Barrier();
          if (status.ok() && save_at > 0 && trainer.job().rank() == saver) {
            const auto saved = trainer.job().SaveCheckpoint(directory());
            if (!saved.ok()) return ToString(saved.status());
            if (*saved != save_at) return fmt::format("saved iteration {}", *saved);
          }
          if (status.ok()) status = trainer.job().Barrier();
          if (status.ok()) status = trainer.TrainUntil(iterations);
          parameters[trainer.job().rank()] = trainer.Parameters();
          if (status.ok()) status = trainer.job().Leave();
          return Text(status);
        });
    return Agreed(problems, parameters);
  }
  // Runs a new job that loads and continues training. The job has the same name, because the name
  // determines each chunk's core loop and tree, and so the order of its sum.
  Bytes Resume(const std::string& plan, std::uint64_t saved_at, std::uint64_t iterations) {
    std::vector<Bytes> parameters(kRanks);
    const auto problems =
        OnEveryRank(Options("training", plan), false, [&](Trainer& trainer) -> std::string {
          const auto loaded = trainer.job().LoadCheckpoint(directory());
          if (!loaded.ok()) return ToString(loaded.status());
          if (*loaded != saved_at || trainer.iteration() != saved_at)
            return fmt::format("loaded {}, goes on at {}", *loaded, trainer.iteration());
          Status status = trainer.TrainUntil(iterations);
          parameters[trainer.job().rank()] = trainer.Parameters();
          if (status.ok()) status = trainer.job().Leave();
          return Text(status);
        });
    return Agreed(problems, parameters);
  }
  std::vector<Process> StartTraining(std::uint64_t iterations, const std::vector<std::string>& more,
                                     const std::string& plan = "sharded-star") {
    std::vector<Process> trainers;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      TrainerProcessOptions options{.endpoint = racks_.endpoint(rank / 2 * racks_.per_rack()),
                                    .job = "training",
                                    .rank = rank,
                                    .world_size = kRanks,
                                    .iterations = iterations,
                                    .more = {"--plan", plan}};
      options.more.insert(options.more.end(), more.begin(), more.end());
      trainers.push_back(StartTrainer(options));
    }
    return trainers;
  }
  std::string directory() const { return folder_.path() + "/saved"; }

  RackProcess racks_;
  TemporaryFolder folder_;
  std::uint32_t chunk_bytes_ = 4096;
};

TEST_F(RacksCheckpoint, AResumedRunHasTheBitsOfAnUninterruptedOne) {
  for (const char* plan : {"ring", "sharded-star"}) {
    SCOPED_TRACE(plan);
    const Bytes expected = Train(plan, 80);
    ASSERT_FALSE(expected.empty());
    // Saved by a rank of another rack than the one that opens jobs.
    EXPECT_EQ(Train(plan, 80, 40, 3), expected);
    EXPECT_EQ(Resume(plan, 40, 80), expected);
  }
}

// Includes optimizer state: a job of one rack resumes the run and is saved again, and that
// checkpoint is loaded across racks.
TEST_F(RacksCheckpoint, OneRackLoadsWhatManySavedAndTheOtherWayRound) {
  const Bytes saved = Train("ring", 30, 30);
  EXPECT_EQ(Resume("", 30, 30), saved);
  const Bytes of_one_rack = Train("", 20, 20);
  EXPECT_EQ(Resume("ring", 20, 20), of_one_rack);
  EXPECT_NE(Resume("ring", 20, 25), of_one_rack);
}

TEST_F(RacksCheckpoint, PhubctlSavesWhileTrainingGoesOnWhicheverRackIsAsked) {
  std::vector<Process> trainers = StartTraining(kRunning, {"--pause-ms", "2"});
  ASSERT_TRUE(WaitForIteration(trainers[0], 10, kPatience)) << trainers[0].Outputs();
  std::vector<std::uint64_t> iterations;
  for (std::size_t rack = 0; rack < kRacks; ++rack) {
    const std::string to = fmt::format("{}/from-{}", folder_.path(), rack);
    const Finished saved = racks_.Ask(rack, {"job", "save", "training", to, "-o", "json"});
    ASSERT_EQ(saved.exit, Exit::WithCode(0)) << saved.error << racks_.Outputs();
    ASSERT_TRUE(trainers[0].IsRunning()) << "the training is too short to be saved on the way";
    EXPECT_THAT(saved.output, HasSubstr("\"lockstep\": true"));
    const std::size_t at = saved.output.find("\"iteration\": \"");
    ASSERT_NE(at, std::string::npos) << saved.output;
    iterations.push_back(
        std::strtoull(saved.output.c_str() + at + sizeof "\"iteration\": \"" - 1, nullptr, 10));
    // Every rack's daemon knows the checkpoint's path.
    for (std::size_t other = 0; other < kRacks; ++other)
      EXPECT_THAT(racks_.Ask(other, {"job", "get", "training"}).output, HasSubstr(to));
  }
  for (Process& trainer : trainers)
    ASSERT_EQ(trainer.Wait(kPatience), Exit::WithCode(0)) << trainer.Outputs();
  chunk_bytes_ = 0;  // the daemons' default, as for those processes
  const Bytes expected = Train("sharded-star", kRunning);
  for (std::size_t rack = 0; rack < kRacks; ++rack) {
    std::filesystem::remove_all(directory());
    std::filesystem::rename(fmt::format("{}/from-{}", folder_.path(), rack), directory());
    EXPECT_EQ(Resume("sharded-star", iterations[rack], kRunning), expected);
  }
}

// Every rank of every rack receives the load's error, and the job continues.
TEST_F(RacksCheckpoint, WhatIsDamagedIsRefusedAtEveryRankOfEveryRack) {
  const Bytes saved = Train("sharded-star", 10, 10);
  const std::string damaged = folder_.path() + "/damaged";
  std::filesystem::copy(directory(), damaged, std::filesystem::copy_options::recursive);
  std::filesystem::remove(damaged + "/manifest.json");
  std::vector<Bytes> parameters(kRanks);
  const auto problems =
      OnEveryRank(Options("damaged", "sharded-star"), false, [&](Trainer& trainer) -> std::string {
        for (int i = 0; i < 2; ++i) {
          const auto loaded = trainer.job().LoadCheckpoint(damaged);
          if (loaded.ok()) return "loaded";
          if (loaded.status().message().find("manifest") == std::string::npos)
            return ToString(loaded.status());
        }
        const auto whole = trainer.job().LoadCheckpoint(directory());
        if (!whole.ok()) return ToString(whole.status());
        parameters[trainer.job().rank()] = trainer.Parameters();
        return Text(trainer.job().Leave());
      });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "") << racks_.Outputs();
  for (const Bytes& of_rank : parameters) EXPECT_EQ(of_rank, saved);
}

// Kills a process when the first bytes are on disk.
class RacksCheckpointKill : public RacksCheckpoint {
 protected:
  bool HasFiles() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path()))
      if (entry.is_regular_file()) return true;
    return false;
  }
  Process StartSaving() {
    trainers_ = StartTraining(1'000'000, {"--scale", "200"});
    EXPECT_TRUE(WaitForIteration(trainers_[0], 2, kPatience)) << trainers_[0].Outputs();
    Process saving = Process::Start(
        kPhubctl, {"-e", racks_.endpoint(0), "job", "save", "training", directory()});
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!HasFiles() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return saving;
  }
  std::vector<Process> trainers_;
};

TEST_F(RacksCheckpointKill, ADaemonThatDiesDuringASaveLeavesNothingThatLooksLikeAState) {
  Process saving = StartSaving();
  racks_.daemon(1).Signal(SIGKILL);
  const auto exit = saving.Wait(kPatience);
  ASSERT_TRUE(exit.has_value()) << "hangs: " << saving.Outputs();
  EXPECT_NE(exit, Exit::WithCode(0)) << "saved before the daemon died: " << saving.Outputs();
  EXPECT_THAT(saving.StandardError(), HasSubstr(racks_.endpoint(1)));
  EXPECT_FALSE(HasFiles());
  for (Process& trainer : trainers_) EXPECT_TRUE(trainer.Wait(kPatience).has_value());
}

// Every rack has freed its copy, although only one daemon knows who started the save.
TEST_F(RacksCheckpointKill, WhoDiesDuringASaveKeepsNobodyFromTheNextOne) {
  Process saving = StartSaving();
  saving.Signal(SIGKILL);
  ASSERT_TRUE(saving.Wait(kPatience).has_value());
  EXPECT_FALSE(std::filesystem::exists(directory() + "/manifest.json"));
  Process again =
      Process::Start(kPhubctl, {"-e", racks_.endpoint(2), "job", "save", "training", directory()});
  EXPECT_EQ(again.Wait(kPatience), Exit::WithCode(0)) << again.Outputs() << racks_.Outputs();
  EXPECT_TRUE(std::filesystem::exists(directory() + "/manifest.json"));
  for (Process& trainer : trainers_) EXPECT_TRUE(trainer.IsRunning()) << trainer.Outputs();
}

// An aggregator is nobody's home. It forwards requests, and the rounds of kLoad.
class RacksCheckpointWithAggregator : public RacksCheckpoint {
 protected:
  RacksCheckpointWithAggregator() : RacksCheckpoint({}, 1) {}
};

TEST_F(RacksCheckpointWithAggregator, AResumedRunHasTheBitsOfAnUninterruptedOne) {
  const Bytes expected = Train("in-switch", 40, 20, 4);
  EXPECT_EQ(Resume("in-switch", 20, 40), expected);
  std::vector<Process> trainers = StartTraining(1'000'000, {}, "in-switch");
  ASSERT_TRUE(WaitForIteration(trainers[0], 2, kPatience)) << trainers[0].Outputs();
  const Finished saved = racks_.Ask(kRacks, {"job", "save", "training", directory()});
  EXPECT_EQ(saved.exit, Exit::WithCode(0)) << saved.error << racks_.Outputs();
}

// With identities: a caller is known to its own rack's daemon, and daemons know each other.
class RacksCheckpointWithIdentities : private RackAuthority, public RacksCheckpoint {
 protected:
  RacksCheckpointWithIdentities() : RacksCheckpoint(DaemonArguments()) {}
  void SetUp() override {
    RacksCheckpoint::SetUp();
    MakeTenant(racks_);
  }
};

class RacksCheckpointOfSeveralDaemons : public RacksCheckpoint {
 protected:
  RacksCheckpointOfSeveralDaemons() : RacksCheckpoint({}, 0, 2) {}
};

// A rank saves; then a client saves through the second daemon of another rack.
TEST_F(RacksCheckpointOfSeveralDaemons, AResumedRunHasTheBitsOfAnUninterruptedOne) {
  const Bytes expected = Train("sharded-star", 40, 20, 3);
  EXPECT_EQ(Resume("sharded-star", 20, 40), expected);
  std::filesystem::remove_all(directory());
  std::vector<Process> trainers = StartTraining(1'000'000, {});
  ASSERT_TRUE(WaitForIteration(trainers[0], 2, kPatience)) << trainers[0].Outputs();
  const Finished saved = racks_.Ask(5, {"job", "save", "training", directory(), "-o", "json"});
  ASSERT_EQ(saved.exit, Exit::WithCode(0)) << saved.error << racks_.Outputs();
  for (std::size_t daemon = 0; daemon < racks_.size(); ++daemon)
    EXPECT_THAT(racks_.Ask(daemon, {"job", "get", "training"}).output, HasSubstr(directory()));
}

TEST_F(RacksCheckpointWithIdentities, AResumedRunHasTheBitsOfAnUninterruptedOne) {
  const Bytes expected = Train("sharded-star", 40, 20, 5);
  EXPECT_EQ(Resume("sharded-star", 20, 40), expected);
}

}  // namespace
}  // namespace phub::process
