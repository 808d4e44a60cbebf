// Jobs with sum=fixed over real daemons: bits, what users see, checkpoints. random_jobs_test draws
// such jobs, too.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include "phub/client.h"
#include "tests/process/rack_process.h"
#include "tests/support/fixed_sum_reference.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint32_t kRanks = 3;
constexpr std::uint64_t kElements = 3000;
constexpr std::uint32_t kBlock = 40;
constexpr std::uint32_t kChunkElements = 256;

JobOptions Options(const std::string& job, TransportChoice transport = TransportChoice::kTcp) {
  return {.job = job,
          .world_size = kRanks,
          .chunk_bytes = kChunkElements * sizeof(float),
          .staging_bytes = kChunkElements * sizeof(float),  // one slot: gradients leave it early
          .transport = transport,
          .sum = Sum::kFixed,
          .sum_block = kBlock};
}

std::vector<float> GradientOf(std::uint32_t rank) {
  std::vector<float> values(kElements);
  for (std::uint64_t i = 0; i < kElements; ++i) {
    values[i] =
        static_cast<float>(i % 97) * (i % 5 == rank ? 3e3f : 7e-3f) + static_cast<float>(rank);
  }
  return values;
}

// The ranks of one job, each in a thread of its own.
class FixedSums : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(rack_.serving()) << rack_.Outputs(); }

  // The parameters of all ranks after one round of these gradients; the job stays.
  std::vector<std::vector<float>> Exchange(const JobOptions& options,
                                           const std::vector<std::vector<float>>& gradients) {
    std::vector<std::vector<float>> parameters(kRanks);
    std::vector<std::thread> threads;
    jobs_.clear();
    jobs_.resize(kRanks);
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        JobOptions own = options;
        own.rank = rank;
        auto session = Connect(rack_.endpoint(rank % 2));
        ASSERT_TRUE(session.ok()) << ToString(session.status());
        auto job = session->Join(own);
        ASSERT_TRUE(job.ok()) << ToString(job.status());
        jobs_[rank] = std::move(*job);
        auto key = jobs_[rank]->AddKey("k", f32, kElements, None{}, {.operation = Operation::kSum});
        ASSERT_TRUE(key.ok()) << ToString(key.status());
        std::ranges::copy(gradients[rank], key->gradients<float>().begin());
        const Status status = key->PushPull().Wait();
        ASSERT_TRUE(status.ok()) << ToString(status);
        const auto values = key->parameters<float>();
        parameters[rank].assign(values.begin(), values.end());
      });
    }
    for (std::thread& thread : threads) thread.join();
    return parameters;
  }

  RackProcess rack_{2, {"--cores", "2", "--pin", "off"}};
  std::vector<std::optional<Job>> jobs_;
};

TEST_F(FixedSums, HaveTheBitsOfTheDefinitionOnEveryTransport) {
  const std::vector<std::vector<float>> gradients = {GradientOf(0), GradientOf(1), GradientOf(2)};
  std::vector<std::size_t> chunks;
  for (std::uint64_t begin = 0; begin < kElements; begin += kChunkElements) {
    chunks.push_back(std::min<std::uint64_t>(kChunkElements, kElements - begin));
  }
  const std::vector<float> expected = oracle::SumInFixedPoint(gradients, kBlock, chunks);
  std::vector<float> in_rank_order(kElements);
  for (std::uint64_t i = 0; i < kElements; ++i) {
    in_rank_order[i] = gradients[0][i] + gradients[1][i] + gradients[2][i];
  }
  EXPECT_NE(expected, in_rank_order) << "this test would not notice sums of floats";
  for (const auto& [name, transport] :
       {std::pair{"tcp", TransportChoice::kTcp}, {"shm", TransportChoice::kSharedMemory}}) {
    for (const auto& parameters : Exchange(Options(name, transport), gradients)) {
      EXPECT_EQ(parameters, expected) << name;
    }
  }
}

TEST_F(FixedSums, AreShownAndNanIsNamedWithItsRank) {
  std::vector<std::vector<float>> gradients = {GradientOf(0), GradientOf(1), GradientOf(2)};
  gradients[1][77] = std::numeric_limits<float>::quiet_NaN();
  const auto parameters = Exchange(Options("seen"), gradients);
  EXPECT_EQ(std::ranges::count_if(parameters[0], [](float value) { return std::isnan(value); }),
            kBlock);
  const std::string text = rack_.Ask(0, {"job", "get", "seen"}).output;
  const std::string other = rack_.Ask(1, {"job", "get", "seen"}).output;
  EXPECT_THAT(text, HasSubstr("fixed, blocks of 40"));
  EXPECT_THAT(text + other, AllOf(HasSubstr("1 sums not finite (1 gradients)"),
                                  HasSubstr("first: rank 1 ("), HasSubstr("key k")));
  EXPECT_THAT(rack_.Ask(0, {"job", "get", "seen", "-o", "json"}).output,
              AllOf(HasSubstr("\"sum\": \"fixed\""), HasSubstr("\"sum_block\": 40")));
}

// A rank that trains alone. Its gradients depend on the parameters that it read.
class Training {
 public:
  Training(const std::string& endpoint, const std::string& job, Sum sum) {
    auto session = Connect(endpoint);
    EXPECT_TRUE(session.ok()) << ToString(session.status());
    auto joined = session->Join({.job = job, .chunk_bytes = 4096, .sum = sum});
    EXPECT_TRUE(joined.ok()) << ToString(joined.status());
    job_ = std::move(*joined);
    auto key = job_->AddKey("k", f32, kElements, Adam{.learning_rate = 0.1});
    EXPECT_TRUE(key.ok()) << ToString(key.status());
    key_ = *key;
  }
  Job& job() { return *job_; }
  void TrainUntil(std::uint64_t iteration) {
    while (job_->iteration() < iteration) {
      for (std::uint64_t i = 0; i < kElements; ++i) {
        const float target = static_cast<float>(i % 61) / (i % 7 == 0 ? 5.0f : 5e5f);
        key_->gradients<float>()[i] = key_->parameters<float>()[i] - target;
      }
      const Status status = key_->PushPull().Wait();
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
  }
  std::vector<float> Parameters() const {
    const auto values = key_->parameters<float>();
    return {values.begin(), values.end()};
  }

 private:
  std::optional<Job> job_;
  std::optional<Key> key_;
};

// A run that is interrupted and loaded has the bits of one that is not. They differ from those of a
// run that continues with sum=float.
TEST_F(FixedSums, AreTheSameAfterACheckpoint) {
  constexpr std::uint64_t kSaved = 10, kIterations = 20;
  const TemporaryFolder folder;
  const std::string directory = folder.path() + "/saved";
  Training first(rack_.endpoint(0), "first", Sum::kFixed);
  first.TrainUntil(kSaved);
  const auto saved = first.job().SaveCheckpoint(directory);
  ASSERT_TRUE(saved.ok()) << ToString(saved.status());
  first.TrainUntil(kIterations);
  const auto resumed = [&](const std::string& name, Sum sum) {
    Training second(rack_.endpoint(1), name, sum);
    EXPECT_TRUE(second.job().LoadCheckpoint(directory).ok());
    second.TrainUntil(kIterations);
    return second.Parameters();
  };
  EXPECT_EQ(resumed("second", Sum::kFixed), first.Parameters());
  EXPECT_NE(resumed("third", Sum::kFloat), first.Parameters());
}

}  // namespace
}  // namespace phub::process
