// A rack of three daemons that loses one, or whose daemons do not agree.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <phub/client.h>
#include <signal.h>

#include <algorithm>
#include <vector>

#include "common/base/clock.h"
#include "tests/process/rack_expectations.h"
#include "tests/process/rack_process.h"
#include "tests/process/trainer.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kRanks = 3;
constexpr DurationNs kRackPatience = 60 * kSecond;

class Rack : public ::testing::Test {
 protected:
  Rack() : rack_(3, {"--cores", "1", "--pin", "off"}) {}
  void SetUp() override { ASSERT_TRUE(rack_.serving()) << rack_.Outputs(); }

  // A worker may connect to any of the daemons.
  std::vector<Process> Train(const std::string& job, std::uint64_t iterations) {
    std::vector<Process> trainers;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank)
      trainers.push_back(StartTrainer({.endpoint = rack_.endpoint(rank % rack_.size()),
                                       .job = job,
                                       .rank = rank,
                                       .world_size = kRanks,
                                       .iterations = iterations}));
    return trainers;
  }
  RackProcess rack_;
};

TEST_F(Rack, AKilledDaemonIsNamedTheOthersHaveTheirMemoryBackAndItMayReturn) {
  std::vector<Process> trainers = Train("training", 1'000'000);
  for (Process& trainer : trainers)
    ASSERT_TRUE(WaitForIteration(trainer, 20, kRackPatience)) << trainer.Outputs();
  const std::string dead = rack_.endpoint(1);
  rack_.daemon(1).Signal(SIGKILL);
  ExpectVerdict(trainers, {dead, "training"}, rack_);
  ExpectMemoryBack(rack_, 0);
  ExpectMemoryBack(rack_, 2);

  // Expect: the daemon's row shows that it does not answer, and the exit code is 1.
  const Finished list = rack_.Ask(0, {"server", "list"});
  EXPECT_EQ(list.exit, Exit::WithCode(1));
  EXPECT_THAT(list.output, HasSubstr(dead));
  EXPECT_THAT(list.output, HasSubstr("does not answer"));
  EXPECT_THAT(list.error, HasSubstr(dead));
  // Expect: a job needs the whole rack; the error names the missing daemon.
  const Trained refused =
      TrainUndisturbed(rack_.endpoint(0), {.job = "training", .world_size = kRanks}, 10);
  EXPECT_THAT(refused.problem, HasSubstr(dead));
  EXPECT_THAT(refused.problem, HasSubstr("UNAVAILABLE"));

  rack_.Restart(1);
  ASSERT_TRUE(rack_.serving()) << rack_.Outputs();
  EXPECT_EQ(rack_.Ask(0, {"server", "list"}).exit, Exit::WithCode(0));
  std::vector<Process> again = Train("training", 50);
  for (Process& trainer : again)
    EXPECT_EQ(trainer.Wait(kRackPatience), Exit::WithCode(0))
        << trainer.Outputs() << rack_.Outputs();
}

TEST_F(Rack, AStoppedDaemonIsNamedAndGoesOnWithoutTheJob) {
  std::vector<Process> trainers = Train("training", 1'000'000);
  for (Process& trainer : trainers)
    ASSERT_TRUE(WaitForIteration(trainer, 20, kRackPatience)) << trainer.Outputs();
  rack_.daemon(2).Signal(SIGSTOP);
  ExpectVerdict(trainers, {rack_.endpoint(2), "training"}, rack_);
  ExpectMemoryBack(rack_, 0);
  ExpectMemoryBack(rack_, 1);
  rack_.daemon(2).Signal(SIGCONT);
  ExpectMemoryBack(rack_, 2);
  std::vector<Process> again = Train("training", 50);
  for (Process& trainer : again)
    EXPECT_EQ(trainer.Wait(kRackPatience), Exit::WithCode(0))
        << trainer.Outputs() << rack_.Outputs();
}

// Parameters that come from several daemons are in the worker's own memory. A daemon that shares
// memory with the worker writes its part there instead of sending it through the lane.
TEST_F(Rack, ADaemonOnTheWorkersHostWritesItsPartOfTheParameters) {
  constexpr std::uint64_t kElements = 1'000'000;
  constexpr int kIterations = 5;
  auto session = Connect(rack_.endpoint(1));
  ASSERT_TRUE(session.ok()) << session.status().message();
  auto job = session->Join({.job = "alone", .transport = TransportChoice::kSharedMemory});
  ASSERT_TRUE(job.ok()) << job.status().message();
  auto key = job->AddKey("weights", f32, kElements, Sgd{.learning_rate = 1.0});
  ASSERT_TRUE(key.ok()) << key.status().message();
  std::vector<float> first(kElements, 10.0f);
  ASSERT_TRUE(job->Initialize(*key, {first.data(), kElements, f32}).ok());
  std::ranges::fill(key->gradients<float>(), 1.0f);
  for (int i = 0; i < kIterations; ++i) ASSERT_TRUE(key->PushPull().Wait().ok());
  const auto parameters = key->parameters<float>();
  EXPECT_TRUE(std::ranges::all_of(parameters, [](float value) { return value == 5.0f; }));

  std::size_t writers = 0;
  for (std::size_t daemon = 0; daemon < rack_.size(); ++daemon) {
    const std::uint64_t written = CountedAt(rack_, daemon, "phub_replies_in_pass_total");
    EXPECT_LE(written, CountedAt(rack_, daemon, "phub_rounds_total"));
    if (written >= kIterations) ++writers;
  }
  EXPECT_EQ(writers, 1u) << rack_.Ask(1, {"stats", "--all"}).output;
  EXPECT_TRUE(job->Leave().ok());
}

// Each daemon has a part of the key's chunks.
TEST_F(Rack, StallsAreThoseOfAllDaemons) {
  constexpr std::uint64_t kChunks = 12;
  std::vector<Job> jobs;
  std::vector<Key> keys;
  for (const std::uint32_t rank : {0u, 1u}) {
    auto session = Connect(rack_.endpoint(0));
    ASSERT_TRUE(session.ok()) << ToString(session.status());
    auto job = session->Join({.job = "waits", .rank = rank, .world_size = 2, .chunk_bytes = 4096});
    ASSERT_TRUE(job.ok()) << ToString(job.status());
    auto key = job->AddKey("w", f32, kChunks * 1024, None{});
    ASSERT_TRUE(key.ok()) << ToString(key.status());
    jobs.push_back(*std::move(job));
    keys.push_back(*std::move(key));
  }
  const Handle handle = keys[0].PushPull();
  for (const std::size_t asked : {0u, 2u}) {
    std::string stalls;
    const TimeNs begun = SystemClock().Now();
    do {  // the pushes take a moment
      stalls = rack_.Ask(asked, {"job", "stalls", "waits", "-o", "json"}).output;
    } while (stalls.find("\"chunks_waiting\": 12") == std::string::npos &&
             SystemClock().Now() - begun < kRackPatience);
    EXPECT_THAT(stalls, HasSubstr("\"chunks_waiting\": 12"));
  }
  const Handle other = keys[1].PushPull();
  EXPECT_TRUE(other.Wait().ok());
  EXPECT_TRUE(handle.Wait().ok());
  for (Job& job : jobs) EXPECT_TRUE(job.Leave().ok());
}

TEST(RackOfTwoMinds, DaemonsThatAreConfiguredDifferentlyAreRefusedAndBothNamed) {
  RackProcess rack(2, {"--cores", "1", "--pin", "off"});
  ASSERT_TRUE(rack.serving()) << rack.Outputs();
  rack.daemon(1).Signal(SIGTERM);
  ASSERT_TRUE(rack.daemon(1).Wait(kRackPatience).has_value());
  rack.Restart(1, {"--chunk-bytes", "4096"});
  ASSERT_TRUE(rack.serving()) << rack.Outputs();
  for (const std::size_t asked : {0u, 1u}) {
    const Trained refused = TrainUndisturbed(rack.endpoint(asked), {.job = "training"}, 1);
    EXPECT_THAT(refused.problem, HasSubstr(rack.endpoint(0)));
    EXPECT_THAT(refused.problem, HasSubstr(rack.endpoint(1)));
    EXPECT_THAT(refused.problem, HasSubstr("different configurations (chunk_bytes is "));
    EXPECT_THAT(refused.problem, HasSubstr(fmt::format("4096 at {}", rack.endpoint(1))));
    EXPECT_THAT(refused.problem, HasSubstr(fmt::format("131072 at {}", rack.endpoint(0))));
    EXPECT_THAT(refused.problem, HasSubstr("--dump-config"));
  }
  // Expect: neither daemon keeps anything of the job.
  for (const std::size_t asked : {0u, 1u})
    EXPECT_THAT(rack.Ask(asked, {"job", "list", "-o", "json"}).output, HasSubstr("\"jobs\": []"));
}

}  // namespace
}  // namespace phub::process
