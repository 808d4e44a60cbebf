// Workers that misbehave in shared memory, and the remains of hundreds of jobs: the daemon's
// resources do not grow, and other jobs' bits are correct.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <thread>

#include "common/base/random.h"
#include "tests/process/daemon_process.h"
#include "tests/process/trainer.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

constexpr DurationNs kPatience = 60 * kSecond;

std::size_t DescriptorsOf(pid_t process) {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(process) + "/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

class BadWorkers : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kIterations = 200;

  void SetUp() override {
    ASSERT_FALSE(daemon_.endpoint().empty()) << daemon_.process().Outputs();
    expected_ = TrainSteadily();
    ASSERT_EQ(expected_.problem, "");
  }
  void TearDown() override {
    const Trained after = TrainSteadily();
    EXPECT_EQ(after.problem, "") << daemon_.process().Outputs();
    EXPECT_EQ(after.parameters, expected_.parameters);
    EXPECT_TRUE(daemon_.process().IsRunning()) << daemon_.process().Outputs();
  }
  // Runs a well-behaved job over shared memory.
  Trained TrainSteadily() {
    return TrainUndisturbed(daemon_.endpoint(),
                            {.job = "steady",
                             .world_size = 2,
                             .chunk_bytes = 4096,
                             .transport = TransportChoice::kSharedMemory},
                            kIterations);
  }

  DaemonProcess daemon_{{"--cores", "2", "--pin", "off"}};
  Trained expected_;
};

// Runs both ranks of a job of its own; rank 1's gradients change all the time.
TEST_F(BadWorkers, OneThatRewritesGradientsWhileTheyAreSummedHarmsNobodyElse) {
  std::atomic<bool> over = false;
  std::atomic<std::uint64_t> rounds = 0;
  std::string problem;
  const auto work = [&](std::uint32_t rank) -> Status {
    auto session = Connect(daemon_.endpoint());
    if (!session.ok()) return session.status();
    auto job = session->Join({.job = "restless",
                              .rank = rank,
                              .world_size = 2,
                              .chunk_bytes = 4096,
                              .transport = TransportChoice::kSharedMemory});
    if (!job.ok()) return job.status();
    auto key = job->AddKey("restless", f32, 100'000, Adam{});
    if (!key.ok()) return key.status();
    std::atomic<bool> still = false;
    std::thread rewriting([&, memory = key->gradients<float>()] {
      for (std::uint32_t value = 1; rank == 1 && !still; value = value * 1664525 + 1013904223)
        for (float& element : memory)
          std::atomic_ref<float>(element).store(static_cast<float>(value),
                                                std::memory_order_relaxed);
    });
    Status status;
    for (std::uint64_t i = 0; i < 300 && status.ok(); ++i) {
      status = key->PushPull().Wait();
      if (rank == 0) ++rounds;
    }
    still = true;
    rewriting.join();
    return status.ok() ? job->Leave() : status;
  };
  std::thread first([&] { EXPECT_EQ(ToString(work(0)), "OK"); });
  std::thread second([&] {
    EXPECT_EQ(ToString(work(1)), "OK");
    over = true;
  });
  std::uint32_t steady_runs = 0;
  while (!over || steady_runs == 0) {
    const Trained trained = TrainSteadily();
    EXPECT_EQ(trained.problem, "");
    EXPECT_EQ(trained.parameters, expected_.parameters);
    ++steady_runs;
  }
  first.join();
  second.join();
  EXPECT_EQ(rounds, 300u);
}

// The gradients are large, so that a random instant is probably within a push.
TEST_F(BadWorkers, OnesThatAreKilledInsideOfAPushHarmNobodyElse) {
  SeededRandom random(3);
  for (const char* transport : {"shm", "tcp", "shm", "tcp", "shm", "shm"}) {
    std::vector<Process> trainers =
        StartTrainers({.endpoint = daemon_.endpoint(),
                       .job = "short-lived",
                       .world_size = 3,
                       .iterations = 1'000'000,
                       .more = {"--scale", "8", "--transport", transport}});
    ASSERT_TRUE(WaitForIteration(trainers[0], 3, kPatience)) << trainers[0].Outputs();
    Sleep(static_cast<DurationNs>(random.Below(30'000)) * kMicrosecond);
    trainers[random.Below(3)].Signal(SIGKILL);
    trainers[random.Below(3)].Signal(SIGKILL);
    for (Process& trainer : trainers) {
      const auto exit = trainer.Wait(kPatience);
      ASSERT_TRUE(exit.has_value()) << trainer.Outputs();
      EXPECT_NE(exit, Exit::WithCode(0)) << trainer.Outputs();
    }
  }
}

TEST_F(BadWorkers, HundredsOfJobsLeaveNoDescriptorsAndNoMemoryBehind) {
  const auto run = [&](std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const Trained trained = TrainUndisturbed(
          daemon_.endpoint(),
          {.job = "job-" + std::to_string(i % 7),
           .world_size = 2,
           .transport = i % 2 == 0 ? TransportChoice::kSharedMemory : TransportChoice::kTcp},
          3);
      ASSERT_EQ(trained.problem, "") << daemon_.process().Outputs();
    }
    Sleep(kSecond);  // the last job's resources are freed a moment later
  };
  run(40);
  const std::size_t descriptors = DescriptorsOf(daemon_.process().pid());
  const std::uint64_t resident = daemon_.process().ResidentBytes();
  run(std::getenv("PHUB_TEST_LONG") != nullptr ? 1000 : 200);
  // A job over shared memory has more than ten descriptors and MiBs of staging. A leak would be
  // thousands of descriptors and hundreds of MiB. Smaller differences are due to gRPC and the
  // allocator.
  EXPECT_LE(DescriptorsOf(daemon_.process().pid()), descriptors + 8);
  EXPECT_LE(daemon_.process().ResidentBytes(), resident + (std::uint64_t{16} << 20));
}

}  // namespace
}  // namespace phub::process
