// Checkpoints with real daemons: saved during training by the job and by phubctl; loaded with the
// same bits as an uninterrupted run; and refused with the reason if they are damaged.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "tests/process/rack_process.h"
#include "tests/process/trainer.h"
#include "tests/process/training_process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr DurationNs kCheckpointPatience = 60 * kSecond;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Bytes BytesOf(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

// Runs a job whose ranks are threads that run `body`. Returns each rank's problem, or an empty
// string.
std::vector<std::string> OnEveryRank(const std::string& endpoint, JobOptions options,
                                     const TrainerOptions& trainer_options,
                                     const std::function<std::string(Trainer&)>& body) {
  std::vector<std::string> results(options.world_size);
  std::vector<std::thread> threads;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    threads.emplace_back([&, options] {
      auto trainer = Trainer::Start(endpoint, options, trainer_options);
      results[options.rank] = trainer.ok() ? body(*trainer) : ToString(trainer.status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// The parameter is the number of daemons.
class Checkpoint : public ::testing::TestWithParam<std::size_t> {
 protected:
  static constexpr std::uint32_t kRanks = 3;
  static constexpr std::uint64_t kIterations = 120;
  static constexpr std::uint64_t kRunning = 4000;  // long enough for a save during training

  Checkpoint() : rack_(GetParam(), {"--cores", "2", "--pin", "off"}) {}
  void SetUp() override { ASSERT_TRUE(rack_.serving()) << rack_.Outputs(); }

  static JobOptions Options(const std::string& job, std::uint32_t world_size = kRanks) {
    return {.job = job, .world_size = world_size, .chunk_bytes = 4096};
  }
  Bytes Uninterrupted(std::uint64_t iterations) {
    const Trained trained =
        TrainUndisturbed(rack_.endpoint(0), Options("uninterrupted"), iterations);
    EXPECT_EQ(trained.problem, "") << rack_.Outputs();
    return trained.parameters;
  }
  // Trains for `iterations`, then saves through the job's own call.
  std::string SavedAt(std::uint64_t iterations) {
    const std::string directory = fmt::format("{}/saved-{}", folder_.path(), iterations);
    for (const std::string& problem :
         OnEveryRank(rack_.endpoint(0), Options("saving"), {}, [&](Trainer& trainer) {
           Status status = trainer.TrainUntil(iterations);
           if (status.ok()) status = trainer.job().Barrier();
           if (status.ok() && trainer.job().rank() == 1) {
             const auto saved = trainer.job().SaveCheckpoint(directory);
             if (!saved.ok()) return ToString(saved.status());
             if (*saved != iterations) return fmt::format("saved iteration {}", *saved);
           }
           if (status.ok()) status = trainer.job().Barrier();
           return status.ok() ? std::string() : ToString(status);
         }))
      EXPECT_EQ(problem, "") << rack_.Outputs();
    return directory;
  }
  // The parameters of a new job that loads and continues training. They are the same on every rank.
  Bytes Resumed(const std::string& directory, std::uint64_t saved_at, std::uint64_t iterations,
                std::uint32_t world_size = kRanks) {
    std::vector<Bytes> parameters(world_size);
    const auto problems = OnEveryRank(rack_.endpoint(0), Options("resumed", world_size),
                                      {.initialize = false}, [&](Trainer& trainer) {
                                        const auto loaded = trainer.job().LoadCheckpoint(directory);
                                        if (!loaded.ok()) return ToString(loaded.status());
                                        if (*loaded != saved_at || trainer.iteration() != saved_at)
                                          return fmt::format("loaded iteration {}, goes on at {}",
                                                             *loaded, trainer.iteration());
                                        Status status = trainer.TrainUntil(iterations);
                                        parameters[trainer.job().rank()] = trainer.Parameters();
                                        if (status.ok()) status = trainer.job().Leave();
                                        return status.ok() ? std::string() : ToString(status);
                                      });
    for (const std::string& problem : problems) EXPECT_EQ(problem, "") << rack_.Outputs();
    for (const Bytes& of_rank : parameters) EXPECT_EQ(of_rank, parameters[0]);
    return parameters[0];
  }

  RackProcess rack_;
  TemporaryFolder folder_;
};

TEST_P(Checkpoint, AResumedRunHasTheBitsOfAnUninterruptedOne) {
  const Bytes expected = Uninterrupted(kIterations);
  const std::string directory = SavedAt(50);
  EXPECT_EQ(Resumed(directory, 50, 50), Uninterrupted(50));
  EXPECT_EQ(Resumed(directory, 50, kIterations), expected);
}

TEST_P(Checkpoint, AnotherWorldSizeLoadsTheSameParameters) {
  const std::string directory = SavedAt(20);
  const Bytes saved = Uninterrupted(20);
  EXPECT_EQ(Resumed(directory, 20, 20, 2), saved);
  EXPECT_EQ(Resumed(directory, 20, 20, 5), saved);
  EXPECT_NE(Resumed(directory, 20, 25, 2), saved) << "and it trains on";
}

// Saves several times while processes train; a new job resumes from each checkpoint.
TEST_P(Checkpoint, PhubctlSavesWhileTrainingGoesOn) {
  TrainerProcessOptions options{.endpoint = rack_.endpoint(0),
                                .job = "running",
                                .world_size = kRanks,
                                .iterations = kRunning,
                                .more = {"--pause-ms", "1"}};
  std::vector<Process> trainers = StartTrainers(options, folder_.path());
  ASSERT_TRUE(WaitForIteration(trainers[0], 10, kCheckpointPatience)) << trainers[0].Outputs();
  std::vector<std::uint64_t> iterations;
  for (int i = 0; i < 3; ++i) {
    const std::string directory = fmt::format("{}/running-{}", folder_.path(), i);
    const std::uint64_t before = IterationsOf(trainers[0]);
    const Finished saved =
        rack_.Ask(GetParam() - 1, {"job", "save", "running", directory, "-o", "json"});
    ASSERT_EQ(saved.exit, Exit::WithCode(0)) << saved.error << trainers[0].Outputs();
    ASSERT_TRUE(trainers[0].IsRunning()) << "the training is too short to be saved on the way";
    const std::size_t at = saved.output.find("\"iteration\": \"");
    ASSERT_NE(at, std::string::npos) << saved.output;
    iterations.push_back(
        std::strtoull(saved.output.c_str() + at + sizeof "\"iteration\": \"" - 1, nullptr, 10));
    EXPECT_GE(iterations.back() + 1, before);
    EXPECT_THAT(saved.output, HasSubstr("\"lockstep\": true"));
  }
  for (Process& trainer : trainers)
    ASSERT_EQ(trainer.Wait(kCheckpointPatience), Exit::WithCode(0)) << trainer.Outputs();
  const Bytes expected = BytesOf(ReadFile(folder_.path() + "/0"));
  ASSERT_FALSE(expected.empty());
  for (std::size_t i = 0; i < iterations.size(); ++i) {
    const std::string directory = fmt::format("{}/running-{}", folder_.path(), i);
    EXPECT_EQ(Resumed(directory, iterations[i], kRunning), expected);
  }
}

// Kills a rank during a save. The save completes when the rank is back, or fails with the reason. A
// checkpoint that exists is complete.
TEST_P(Checkpoint, AWorkerKilledDuringTheSavingLeavesAWholeStateOrNone) {
  TrainerProcessOptions options{
      .endpoint = rack_.endpoint(0),
      .job = "wounded",
      .world_size = kRanks,
      .iterations = 2000,
      .more = {"--pause-ms", "1", "--wait-timeout-ms", "20000", "--restart"}};
  const Bytes expected = [&] {
    std::vector<Process> trainers = StartTrainers(options, folder_.path());
    EXPECT_TRUE(WaitForIteration(trainers[1], 10, kCheckpointPatience)) << trainers[1].Outputs();
    for (int i = 0; i < 4; ++i) {
      const std::string directory = fmt::format("{}/wounded-{}", folder_.path(), i);
      Process saving = Process::Start(
          kPhubctl, {"-e", rack_.endpoint(0), "job", "save", "wounded", directory, "-o", "json"});
      trainers[1].Signal(SIGKILL);
      options.rank = 1;
      Process anew = StartTrainer({.endpoint = options.endpoint,
                                   .job = options.job,
                                   .rank = 1,
                                   .world_size = kRanks,
                                   .iterations = options.iterations,
                                   .more = options.more});
      std::destroy_at(&trainers[1]);
      std::construct_at(&trainers[1], std::move(anew));
      const auto exit = saving.Wait(kCheckpointPatience);
      EXPECT_TRUE(exit.has_value()) << saving.Outputs();
      if (exit != Exit::WithCode(0)) {
        EXPECT_NE(saving.StandardError(), "");
        EXPECT_FALSE(std::filesystem::exists(directory)) << saving.Outputs();
      }
      EXPECT_TRUE(WaitForIteration(trainers[1], 1, kCheckpointPatience)) << trainers[1].Outputs();
    }
    for (Process& trainer : trainers)
      EXPECT_EQ(trainer.Wait(kCheckpointPatience), Exit::WithCode(0)) << trainer.Outputs();
    return BytesOf(ReadFile(folder_.path() + "/0"));
  }();
  ASSERT_FALSE(expected.empty());
  std::uint32_t loaded = 0;
  for (int i = 0; i < 4; ++i) {
    const std::string directory = fmt::format("{}/wounded-{}", folder_.path(), i);
    if (!std::filesystem::exists(directory)) continue;
    const auto trainers = [&] {
      TrainerProcessOptions again = options;
      again.job = "healed";
      again.more = {"--load", directory};
      return StartTrainers(again, folder_.path());
    }();
    for (const Process& trainer : trainers) {
      auto& process = const_cast<Process&>(trainer);
      ASSERT_EQ(process.Wait(kCheckpointPatience), Exit::WithCode(0)) << process.Outputs();
    }
    EXPECT_EQ(BytesOf(ReadFile(folder_.path() + "/0")), expected);
    ++loaded;
  }
  EXPECT_GE(loaded, 1u);
}

// A kind of damage to a checkpoint, and the words that the error must contain.
struct Damage {
  const char* name;
  std::function<void(const std::string& directory)> damage;
  const char* reason;
};

std::string LargestFileIn(const std::string& directory) {
  std::string largest;
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file() || entry.file_size() < bytes) continue;
    bytes = entry.file_size();
    largest = entry.path();
  }
  return largest;
}

void FlipByte(const std::string& path, std::size_t from_end) {
  std::string bytes = ReadFile(path);
  bytes[bytes.size() - from_end] = static_cast<char>(bytes[bytes.size() - from_end] ^ 0x10);
  std::ofstream(path, std::ios::binary) << bytes;
}

const std::vector<Damage>& Damages() {
  static const auto* const damages = new std::vector<Damage>{
      {"truncated",
       [](const std::string& directory) {
         const std::string path = LargestFileIn(directory);
         std::filesystem::resize_file(path, std::filesystem::file_size(path) - 100);
       },
       "bytes"},
      {"flipped", [](const std::string& directory) { FlipByte(LargestFileIn(directory), 1000); },
       "checksum"},
      {"no-manifest",
       [](const std::string& directory) { std::filesystem::remove(directory + "/manifest.json"); },
       "manifest"},
      {"not-json",
       [](const std::string& directory) {
         std::ofstream(directory + "/manifest.json") << "{\"keys\": [";
       },
       "manifest"},
      {"missing",
       [](const std::string& directory) { std::filesystem::remove(LargestFileIn(directory)); },
       "safetensors"}};
  return *damages;
}

// All ranks receive the reason, nothing was loaded in part, and the same job continues: it loads
// the undamaged checkpoint and trains to the expected bits.
TEST_P(Checkpoint, WhatIsDamagedIsRefusedAtEveryRankAndTheJobGoesOn) {
  const std::string whole = SavedAt(10);
  const Bytes expected = Uninterrupted(20);
  for (const Damage& damage : Damages()) {
    SCOPED_TRACE(damage.name);
    const std::string damaged = fmt::format("{}/{}", folder_.path(), damage.name);
    std::filesystem::copy(whole, damaged, std::filesystem::copy_options::recursive);
    damage.damage(damaged);
    std::vector<std::string> refusals(kRanks);
    std::vector<Bytes> parameters(kRanks);
    const auto problems = OnEveryRank(
        rack_.endpoint(0), Options("damaged"), {.initialize = false}, [&](Trainer& trainer) {
          const std::uint32_t rank = trainer.job().rank();
          const auto loaded = trainer.job().LoadCheckpoint(damaged);
          refusals[rank] = loaded.ok() ? "loaded" : ToString(loaded.status());
          if (const auto second = trainer.job().LoadCheckpoint(whole); !second.ok())
            return ToString(second.status());
          const Status status = trainer.TrainUntil(20);
          parameters[rank] = trainer.Parameters();
          return status.ok() ? std::string() : ToString(status);
        });
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_THAT(refusals[rank], HasSubstr(damage.reason));
      EXPECT_THAT(refusals[rank], HasSubstr(damaged));
      EXPECT_EQ(problems[rank], "");
      EXPECT_EQ(parameters[rank], expected);
    }
  }
}

// A checkpoint with other shapes, and one with other keys.
TEST_P(Checkpoint, WhatIsOfAnotherJobIsRefusedAtEveryRankWithTheKeyNamed) {
  const std::string directory = SavedAt(5);
  for (const std::string& refusal :
       OnEveryRank(rack_.endpoint(0), Options("larger"), {.initialize = false, .scale = 2},
                   [&](Trainer& trainer) {
                     const auto loaded = trainer.job().LoadCheckpoint(directory);
                     return loaded.ok() ? "loaded" : ToString(loaded.status());
                   })) {
    EXPECT_THAT(refusal, HasSubstr("dense.weight"));
    EXPECT_THAT(refusal, HasSubstr("20000"));
    EXPECT_THAT(refusal, HasSubstr("40000"));
  }
  auto session = Connect(rack_.endpoint(0));
  ASSERT_TRUE(session.ok());
  auto job = session->Join({.job = "foreign"});
  ASSERT_TRUE(job.ok());
  ASSERT_TRUE(job->AddKey("another.key", f32, 20'000, Sgd{.learning_rate = 0.1}).ok());
  const auto loaded = job->LoadCheckpoint(directory);
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.status().message(), HasSubstr("another.key"));
}

// A running job ends with its daemon: the error that its workers receive names the last checkpoint.
TEST_P(Checkpoint, TheErrorOfARestartedDaemonsJobNamesTheSavedState) {
  const std::string directory = folder_.path() + "/kept";
  const std::size_t victim = rack_.size() - 1;
  std::atomic<std::uint32_t> ready{0};
  std::vector<std::string> problems;
  std::thread training([&] {
    problems = OnEveryRank(rack_.endpoint(0), Options("ended"), {}, [&](Trainer& trainer) {
      Status status = trainer.TrainUntil(7);
      if (status.ok()) status = trainer.job().Barrier();
      if (status.ok() && trainer.job().rank() == 1)
        status = trainer.job().SaveCheckpoint(directory).status();
      // A copy that will be deleted is not named instead of it.
      if (status.ok() && trainer.job().rank() == 1)
        status = trainer.job().SaveCheckpoint(directory + "-copy", {.lasts = false}).status();
      ++ready;
      while (status.ok()) status = trainer.Iterate();
      return ToString(status);
    });
  });
  // In this thread, because a daemon dies with the thread that started it.
  while (ready < kRanks) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  rack_.daemon(victim).Signal(SIGKILL);
  ASSERT_TRUE(rack_.daemon(victim).Wait(kCheckpointPatience).has_value());
  rack_.Restart(victim);
  training.join();
  for (const std::string& problem : problems)
    EXPECT_THAT(problem, HasSubstr(rack_.endpoint(victim)));
  EXPECT_THAT(problems[1], HasSubstr(fmt::format("iteration 7 in {}", directory)));
  // The checkpoint that the error names exists, and can be resumed.
  EXPECT_EQ(Resumed(directory, 7, 20), Uninterrupted(20));
}

// One daemon has no parts to join, so the default run has the harder case alone.
std::vector<std::size_t> DaemonCounts() {
  if (std::getenv("PHUB_TEST_LONG") == nullptr) return {2};
  return {1, 2};
}

INSTANTIATE_TEST_SUITE_P(Daemons, Checkpoint, ::testing::ValuesIn(DaemonCounts()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace phub::process
