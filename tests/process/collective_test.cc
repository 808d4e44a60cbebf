// Collective keys: their rounds are outside iterations, and checkpoints do not contain them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "phub/client.h"
#include "tests/process/daemon_process.h"
#include "tests/process/join_all.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Both ranks are in this thread, so a key is added and pushed at both before anything waits.
class Collectives : public ::testing::TestWithParam<TransportChoice> {
 protected:
  static constexpr std::uint32_t kRanks = 2;

  void Join(const std::string& name, JobOptions options = {}) {
    options.job = name;
    options.world_size = kRanks;
    options.transport = GetParam();
    jobs_ = JoinAll(daemon_.endpoint(), options);
    ASSERT_EQ(jobs_.size(), kRanks);
  }
  std::vector<Key> Add(const std::string& name, const Optimizer& optimizer,
                       const KeyOptions& options, std::uint64_t elements = 4) {
    std::vector<Key> keys;
    for (Job& job : jobs_) {
      auto key = job.AddKey(name, f32, elements, optimizer, options);
      EXPECT_TRUE(key.ok()) << ToString(key.status());
      if (key.ok()) keys.push_back(*key);
    }
    return keys;
  }
  static std::vector<Handle> Push(std::vector<Key>& keys, float value) {
    std::vector<Handle> handles;
    for (Key& key : keys) {
      std::ranges::fill(key.gradients<float>(), value++);
      handles.push_back(key.PushPull());
    }
    return handles;
  }
  static void Wait(const std::vector<Handle>& handles) {
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(std::chrono::seconds(30));
      EXPECT_TRUE(status.ok()) << ToString(status);
    }
  }
  static void Round(std::vector<Key>& keys, float value) { Wait(Push(keys, value)); }
  void Leave() {
    for (Job& job : jobs_) EXPECT_TRUE(job.Leave().ok());
  }

  DaemonProcess daemon_{{"--cores", "2", "--pin", "off"}};
  std::vector<Job> jobs_;
};
INSTANTIATE_TEST_SUITE_P(Transports, Collectives,
                         ::testing::Values(TransportChoice::kTcp, TransportChoice::kSharedMemory));

TEST_P(Collectives, RunWhileAnIterationWaitsForItsLastKey) {
  Join("whole", {.apply = Apply::kIteration});
  std::vector<Key> a = Add("a", Sgd{.learning_rate = 1.0}, {.operation = Operation::kSum});
  std::vector<Key> b = Add("b", Sgd{.learning_rate = 1.0}, {.operation = Operation::kSum});
  std::vector<Key> loss = Add("loss", None{}, {.collective = true});
  const std::vector<Handle> waiting = Push(a, 1.0f);
  // Added in the middle of an iteration, and with another movement.
  std::vector<Key> parts =
      Add("parts", None{}, {.movement = Movement::kGather, .collective = true});
  for (const float value : {1.0f, 2.0f, 3.0f}) {
    Round(loss, value);
    EXPECT_THAT(loss[1].parameters<float>(), ::testing::Each(2.0f * value + 1.0f));
    Round(parts, value);
    EXPECT_THAT(parts[0].parameters<float>(),
                ElementsAre(value, value, value + 1.0f, value + 1.0f));
  }
  EXPECT_FALSE(waiting[0].Test());
  EXPECT_THAT(ToString(loss[0].PushPullToSkip().Wait()),
              HasSubstr("collective keys are outside iterations"));
  for (const Job& job : jobs_) EXPECT_EQ(job.iteration(), 0u);
  Wait(Push(b, 1.0f));
  Wait(waiting);
  EXPECT_THAT(a[0].parameters<float>(), ::testing::Each(-3.0f));
  for (const Job& job : jobs_) {
    EXPECT_EQ(job.iteration(), 1u);
    EXPECT_EQ(job.last_iteration().decided, 1u);
  }
  EXPECT_EQ(loss[0].iteration(), 3u);
  Leave();
}

// The result arrives where the gradient is, in the program's memory and in memory that phub has
// allocated, which the daemon reads and writes where it is.
TEST_P(Collectives, MayReduceInPlace) {
  constexpr std::uint64_t kElements = 60'000;
  Join("in-place");
  std::vector<Key> whole =
      Add("whole", None{}, {.operation = Operation::kSum, .collective = true}, kElements);
  std::vector<Key> parts =
      Add("parts", None{},
          {.operation = Operation::kSum, .movement = Movement::kReduceScatter, .collective = true},
          kElements);
  for (const bool own : {false, true}) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> elsewhere[kRanks];
      std::span<float> memory[kRanks];
      std::vector<Handle> handles;
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        elsewhere[rank].resize(kElements);
        memory[rank] = own ? whole[rank].gradients<float>() : std::span<float>(elsewhere[rank]);
        std::ranges::fill(memory[rank],
                          static_cast<float>((round + 1) * static_cast<int>(rank + 1)));
        handles.push_back(whole[rank].PushPull(memory[rank], memory[rank]));
      }
      Wait(handles);
      for (const std::span<float> result : memory)
        EXPECT_THAT(result, ::testing::Each(3.0f * static_cast<float>(round + 1)));
      handles.clear();
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        const auto part = memory[rank].subspan(rank * kElements / 2, kElements / 2);
        handles.push_back(parts[rank].PushPull(memory[rank], part));
      }
      Wait(handles);
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        const float before = 3.0f * static_cast<float>(round + 1);
        const auto other = memory[rank].subspan((1 - rank) * kElements / 2, kElements / 2);
        const auto part = memory[rank].subspan(rank * kElements / 2, kElements / 2);
        EXPECT_THAT(part, ::testing::Each(2 * before));
        EXPECT_THAT(other, ::testing::Each(before)) << "it is not written";
      }
    }
  }
  std::vector<float> memory(kElements + 1);
  const std::span<float> all(memory);
  EXPECT_THAT(ToString(whole[0].PushPull(all.first(kElements), all.last(kElements)).Wait()),
              HasSubstr("overlap"));
  Leave();
}

TEST_P(Collectives, AreNotInCheckpoints) {
  TemporaryFolder folder;
  const std::string directory = folder.path() + "/saved";
  const KeyOptions summed{.operation = Operation::kSum};
  Join("saving");
  std::vector<Key> loss = Add("loss", None{}, {.collective = true});
  std::vector<Key> weight = Add("weight", Sgd{.learning_rate = 1.0}, summed);
  for (int round = 0; round < 5; ++round) Round(loss, 1.0f);
  for (int round = 0; round < 2; ++round) Round(weight, 1.0f);
  const auto saved = jobs_[1].SaveCheckpoint(directory);
  ASSERT_TRUE(saved.ok()) << ToString(saved.status());
  EXPECT_EQ(*saved, 2u);
  Leave();

  // Another job has other collective keys, and at another place. It loads repeatedly, because the
  // daemon once used a stream of a load after gRPC had deleted it, in some loads.
  Join("loading");
  weight = Add("weight", Sgd{.learning_rate = 1.0}, summed);
  std::vector<Key> other = Add("other", None{}, {.collective = true});
  Round(other, 1.0f);
  for (int load = 0; load < 10; ++load) {
    std::vector<Result<std::uint64_t>> loaded(kRanks, Status());
    std::vector<std::thread> ranks;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back([&, rank] { loaded[rank] = jobs_[rank].LoadCheckpoint(directory); });
    for (std::thread& rank : ranks) rank.join();
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(loaded[rank].ok()) << ToString(loaded[rank].status());
      EXPECT_EQ(jobs_[rank].iteration(), 2u);
      EXPECT_THAT(weight[rank].parameters<float>(), ::testing::Each(-6.0f));
      EXPECT_THAT(other[rank].parameters<float>(), ::testing::Each(3.0f));
    }
  }
  Round(other, 2.0f);
  EXPECT_THAT(other[0].parameters<float>(), ::testing::Each(5.0f));
  EXPECT_EQ(other[0].iteration(), 2u);
  Leave();
}

TEST_P(Collectives, AloneHaveNoIterationAndNothingToSave) {
  Join("alone");
  std::vector<Key> loss = Add("loss", None{}, {.collective = true});
  for (int round = 0; round < 3; ++round) Round(loss, 1.0f);
  EXPECT_EQ(jobs_[0].iteration(), 0u);
  TemporaryFolder folder;
  EXPECT_THAT(ToString(jobs_[0].SaveCheckpoint(folder.path() + "/saved").status()),
              HasSubstr("job alone has only collective keys, which checkpoints do not contain"));
  // A wrong use harms nobody: the job goes on.
  Round(loss, 2.0f);
  const auto learned = jobs_[0].AddKey("learned", f32, 4, Adam{}, {.collective = true});
  EXPECT_THAT(ToString(learned.status()),
              HasSubstr("key learned: collective keys do not allow an optimizer"));
  Leave();
  Join("restarting", {.on_loss = LossPolicy::kWait, .restart = true});
  const auto refused = jobs_[0].AddKey("loss", f32, 4, None{}, {.collective = true});
  EXPECT_THAT(ToString(refused.status()),
              HasSubstr("key loss: collective keys do not work with restart=true"));
  Leave();
}

}  // namespace
}  // namespace phub::process
