// Jobs with apply=iteration over real daemons: the state after a lost rank, what is refused, and
// the memory of waiting sums. random_jobs_test checks their bits.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "phub/client.h"
#include "tests/process/daemon_process.h"
#include "tests/process/rack_process.h"
#include "tests/process/training_process.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

constexpr DurationNs kPatience = 60 * kSecond;

// A rank with two keys of several chunks each.
struct Rank {
  Rank(const std::string& endpoint, JobOptions options) {
    auto session = Connect(endpoint);
    EXPECT_TRUE(session.ok()) << ToString(session.status());
    auto joined = session->Join(options);
    EXPECT_TRUE(joined.ok()) << ToString(joined.status());
    if (!joined.ok()) return;
    job = std::move(*joined);
    for (const char* name : {"a", "b"}) {
      auto key = job->AddKey(name, f32, 3000, Momentum{.learning_rate = 1.0, .momentum = 0.9},
                             {.operation = Operation::kSum});
      EXPECT_TRUE(key.ok()) << ToString(key.status());
      keys.push_back(*key);
    }
  }
  void Fill(std::size_t key, float value) {
    std::ranges::fill(keys[key].gradients<float>(), value);
  }
  bool AllAre(std::size_t key, float value) const {
    const auto parameters = keys[key].parameters<float>();
    return std::ranges::all_of(parameters, [&](float each) { return each == value; });
  }
  std::optional<Job> job;
  std::vector<Key> keys;
};

JobOptions Options(TransportChoice transport = TransportChoice::kAuto) {
  return {.job = "whole",
          .world_size = 2,
          .chunk_bytes = 1024,
          .apply = Apply::kIteration,
          .transport = transport,
          .leave_timeout = 300ms};
}
JobOptions OfRank(JobOptions options, std::uint32_t rank) {
  options.rank = rank;
  return options;
}

class Iterations : public ::testing::TestWithParam<TransportChoice> {
 protected:
  void SetUp() override { ASSERT_TRUE(rack_.serving()) << rack_.Outputs(); }
  // Both ranks push both keys; each element is `value`.
  static void Iterate(Rank& first, Rank& second, float value, bool second_asks = false) {
    std::vector<Handle> handles;
    for (Rank* rank : {&first, &second}) {
      for (std::size_t key = 0; key < 2; ++key) {
        rank->Fill(key, value);
        const bool asks = second_asks && rank == &second && key == 1;
        handles.push_back(asks ? rank->keys[key].PushPullToSkip() : rank->keys[key].PushPull());
      }
    }
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(std::chrono::nanoseconds(kPatience));
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
  }
  RackProcess rack_{2, {"--cores", "3", "--pin", "off", "--liveness-timeout", "1s"}};
};
INSTANTIATE_TEST_SUITE_P(Transports, Iterations,
                         ::testing::Values(TransportChoice::kTcp, TransportChoice::kSharedMemory));

TEST_P(Iterations, AreClippedSkippedAndCounted) {
  JobOptions options = Options(GetParam());
  options.skip_nonfinite = true;
  options.clip_norm = std::sqrt(6000.0);  // the norm of gradients that are 1 everywhere
  Rank first(rack_.endpoint(0), OfRank(options, 0));
  Rank second(rack_.endpoint(1), OfRank(options, 1));
  Iterate(first, second, 0.25f);  // 0.5 everywhere: nothing is clipped
  EXPECT_TRUE(first.AllAre(0, -0.5f) && second.AllAre(1, -0.5f));
  EXPECT_EQ(first.job->last_iteration().scale, 1.0);
  Iterate(first, second, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(first.job->last_iteration().last_skipped);
  EXPECT_TRUE(second.job->last_iteration().last_skipped);
  EXPECT_TRUE(first.AllAre(0, -0.5f) && second.AllAre(1, -0.5f));
  Iterate(first, second, 0.25f, /*second_asks=*/true);
  EXPECT_EQ(first.job->last_iteration().skipped, 2u);
  EXPECT_TRUE(first.AllAre(0, -0.5f) && second.AllAre(1, -0.5f));
  EXPECT_EQ(first.job->iteration(), 1u);
  EXPECT_EQ(first.keys[0].iteration(), 3u);
  Iterate(first, second, 2.0f);  // 4 everywhere, clipped to 1; momentum: 0.9 * 0.5 + 1
  EXPECT_EQ(first.job->last_iteration().scale, 0.25);
  EXPECT_NEAR(first.keys[0].parameters<float>()[17], -0.5f - 1.45f, 1e-6);
  EXPECT_EQ(first.job->iteration(), 2u);
  EXPECT_EQ(first.job->last_iteration().decided, 4u);
  EXPECT_TRUE(second.job->Leave().ok() && first.job->Leave().ok());
}

TEST_P(Iterations, OfARankThatIsLostBeforeTheEndChangeNothing) {
  Rank first(rack_.endpoint(0), OfRank(Options(GetParam()), 0));
  std::optional<Rank> second(std::in_place, rack_.endpoint(1), OfRank(Options(GetParam()), 1));
  Iterate(first, *second, 1.0f);
  ASSERT_TRUE(first.AllAre(0, -2.0f));
  // Both ranks push key a, and it is summed. Rank 1 leaves without pushing key b.
  std::vector<Handle> handles;
  for (std::size_t key = 0; key < 2; ++key) handles.push_back(first.keys[key].PushPull());
  Handle last = second->keys[0].PushPull();
  EXPECT_EQ(last.Wait(300ms).code(), StatusCode::kDeadlineExceeded);
  // job stalls reports what is missing.
  const Finished stalls = rack_.Ask(0, {"job", "stalls", "whole", "--longer-than", "100ms"});
  EXPECT_THAT(stalls.output, ContainsRegex("\nb +[0-9]+ +rank 1")) << stalls.error;
  EXPECT_THAT(stalls.output, Not(ContainsRegex("\na +[0-9]")));
  second.reset();
  const Status verdict = handles[0].Wait(std::chrono::nanoseconds(kPatience));
  EXPECT_EQ(verdict.code(), StatusCode::kAborted);
  EXPECT_THAT(std::string(verdict.message()), AllOf(HasSubstr("rank 1"), HasSubstr("whole")));
  EXPECT_TRUE(first.AllAre(0, -2.0f));  // the sum was not applied
  EXPECT_TRUE(first.AllAre(1, -2.0f));
}

TEST_P(Iterations, TakeNoKeysInTheirMiddle) {
  JobOptions options = Options(GetParam());
  options.world_size = 1;
  Rank rank(rack_.endpoint(0), options);
  Handle half = rank.keys[0].PushPull();
  const auto refused = rank.job->AddKey("c", f32, 10, Sgd{.learning_rate = 1.0});
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("apply=kIteration"), HasSubstr("between iterations")));
  EXPECT_FALSE(half.Test());
  Handle whole = rank.keys[1].PushPull();
  EXPECT_TRUE(half.Wait(std::chrono::nanoseconds(kPatience)).ok());
  EXPECT_TRUE(whole.Wait(std::chrono::nanoseconds(kPatience)).ok());
  EXPECT_TRUE(rank.job->AddKey("c", f32, 10, Sgd{.learning_rate = 1.0}).ok());
}

// Kills processes at any moment, also between the last sum and the first update.
TEST(KilledInIterations, EverybodyIsToldWhoDied) {
  RackProcess rack(2, {"--cores", "2", "--pin", "off"});
  ASSERT_TRUE(rack.serving()) << rack.Outputs();
  for (int run = 0; run < 4; ++run) {
    TrainerProcessOptions options{.endpoint = rack.endpoint(0),
                                  .job = fmt::format("killed{}", run),
                                  .world_size = 3,
                                  .iterations = 1'000'000,
                                  .more = {"--apply-iteration", "--clip-norm", "10"}};
    std::vector<Process> trainers = StartTrainers(options);
    ASSERT_TRUE(WaitForIteration(trainers[1], 20, kPatience)) << trainers[1].Outputs();
    Sleep(run * 700 * kMicrosecond);
    trainers[1].Signal(SIGKILL);
    for (const std::size_t rank : {0u, 2u}) {
      ASSERT_EQ(trainers[rank].Wait(8 * kSecond), Exit::WithCode(1)) << trainers[rank].Outputs();
      EXPECT_THAT(VerdictOf(trainers[rank]), AllOf(HasSubstr("rank 1 "), HasSubstr(options.job)));
    }
  }
}

// The memory of waiting sums is reserved when keys are added, and training never takes more.
TEST(SumsThatWait, ArePartOfTheReservation) {
  DaemonProcess daemon({"--cores", "2", "--pin", "off"});
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  auto session = Connect(daemon.endpoint());
  ASSERT_TRUE(session.ok());
  auto job = session->Join(
      {.job = "large", .apply = Apply::kIteration, .transport = TransportChoice::kTcp});
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  constexpr std::uint64_t kElements = 8 << 20;  // 32 MiB
  auto key = job->AddKey("k", f32, kElements, Sgd{.learning_rate = 1.0});
  ASSERT_TRUE(key.ok()) << ToString(key.status());
  const std::string info = daemon.Ask({"job", "get", "large", "-o", "json"}).output;
  const std::size_t at = info.find("\"memory_bytes\": \"");
  ASSERT_NE(at, std::string::npos) << info;
  const std::uint64_t reserved = std::strtoull(info.c_str() + at + 17, nullptr, 10);
  EXPECT_GE(reserved, 2 * kElements * sizeof(float));  // parameters and sums
  EXPECT_THAT(info, HasSubstr("\"apply\": \"iteration\""));
  // Broadcasts are not part of iterations: after one, all memory except the sums is in use.
  const std::vector<float> initial(kElements, 1.0f);
  ASSERT_TRUE(job->Initialize(*key, {initial.data(), kElements, f32}).ok());
  const std::uint64_t before = daemon.process().ResidentBytes();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(key->PushPull().Wait().ok());
  const std::uint64_t taken = daemon.process().ResidentBytes() - before;
  constexpr std::uint64_t kSums = kElements * sizeof(float);
  EXPECT_GE(taken, kSums - kSums / 10);
  EXPECT_LE(taken, kSums + kSums / 2);
}

TEST(Refusals, SayWhatDoesNotGoTogether) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  auto session = Connect(daemon.endpoint());
  ASSERT_TRUE(session.ok());
  const auto refused = [&](JobOptions options) {
    options.job = "refused";
    const auto job = session->Join(options);
    EXPECT_EQ(job.status().code(), StatusCode::kInvalidArgument);
    return std::string(job.status().message());
  };
  EXPECT_THAT(refused({.clip_norm = 1.0}), HasSubstr("need apply=kIteration"));
  EXPECT_THAT(refused({.skip_nonfinite = true}), HasSubstr("need apply=kIteration"));
  EXPECT_THAT(refused({.apply = Apply::kIteration, .clip_norm = -1.0}), HasSubstr("clip_norm"));
  EXPECT_THAT(refused({.on_loss = LossPolicy::kWait, .restart = true, .apply = Apply::kIteration}),
              AllOf(HasSubstr("apply=iteration"), HasSubstr("restart=true")));
  auto job = session->Join({.job = "chunks"});
  ASSERT_TRUE(job.ok());
  auto key = job->AddKey("k", f32, 10, Sgd{.learning_rate = 1.0});
  ASSERT_TRUE(key.ok());
  const Status status = key->PushPullToSkip().Wait();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("apply=kIteration"));
  EXPECT_TRUE(key->PushPull().Wait().ok());
}

}  // namespace
}  // namespace phub::process
