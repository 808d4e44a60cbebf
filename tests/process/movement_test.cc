// Keys with movement gather and reduce-scatter: exact results over every transport of one host, and
// how many bytes they move, by the daemon's own counters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "phub/client.h"
#include "tests/process/daemon_process.h"
#include "tests/process/reserved_memory.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

struct Setting {
  const char* name;
  std::uint32_t ranks;
  TransportChoice transport;
};

constexpr std::uint64_t kPart = 3 * 32768 + 77;  // not a whole number of chunks
constexpr std::uint64_t kPartBytes = kPart * sizeof(float);
constexpr int kRounds = 3;

std::uint32_t Bits(std::uint32_t rank, int round, std::uint64_t element) {
  std::uint64_t z =
      (element + 1) * 0x9e3779b97f4a7c15u + rank * 977u + static_cast<unsigned>(round);
  z = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<std::uint32_t>(z >> 32);
}

// Sums of these depend on their order.
float Term(std::uint32_t rank, int round, std::uint64_t element) {
  return static_cast<float>(Bits(rank, round, element) >> 8) * 0x1p-20f - 7.0f;
}

class Rank {
 public:
  Rank(const std::string& endpoint, const Setting& setting, std::uint32_t rank)
      : rank_(rank), ranks_(setting.ranks) {
    auto session = Connect(endpoint);
    if (!session.ok()) {
      Note(session.status());
      return;
    }
    auto job = session->Join({.job = "moves",
                              .rank = rank,
                              .world_size = setting.ranks,
                              .transport = setting.transport});
    if (!job.ok()) {
      Note(job.status());
      return;
    }
    job_.emplace(*std::move(job));
  }

  std::string Run(bool gathers) {
    if (!problem_.empty()) return problem_;
    KeyOptions options;
    options.movement = gathers ? Movement::kGather : Movement::kReduceScatter;
    const std::uint64_t elements = ranks_ * kPart;
    auto key = job_->AddKey(gathers ? "gathered" : "scattered", f32, elements, None{}, options);
    if (!key.ok()) return ToString(key.status());
    // In phub's memory, in this process's, and with the part inside the result.
    for (int round = 0; round < kRounds; ++round) {
      gathers ? Gather(*key, round) : ReduceScatter(*key, round);
      if (!problem_.empty()) return problem_;
    }
    return Leave();
  }

 private:
  void Note(const Status& status) { problem_ = ToString(status); }
  std::string Leave() {
    // Every rank has every reply before the counters are read.
    if (const Status status = job_->Barrier(); !status.ok()) return ToString(status);
    const Status status = job_->Leave();
    return status.ok() ? "" : ToString(status);
  }
  // Runs one round: where the gradients and the parameters lie depends on its number.
  void Push(Key& key, int round, std::span<const float> pushed, std::span<float> own_gradients,
            std::span<float> own_parameters) {
    Handle handle;
    if (round == 0) {
      std::copy(pushed.begin(), pushed.end(), key.gradients<float>().begin());
      handle = key.PushPull();
    } else {
      std::copy(pushed.begin(), pushed.end(), own_gradients.begin());
      handle = key.PushPull(ConstElements(own_gradients), Elements(own_parameters));
    }
    if (const Status status = handle.Wait(); !status.ok()) Note(status);
  }
  void Gather(Key& key, int round) {
    std::vector<float> part(kPart);
    for (std::uint64_t i = 0; i < kPart; ++i) part[i] = std::bit_cast<float>(Bits(rank_, round, i));
    std::vector<float> own(kPart);
    std::vector<float> result(ranks_ * kPart);
    const bool inside = round == 2;
    Push(key, round, part,
         inside ? std::span(result).subspan(rank_ * kPart, kPart) : std::span(own), result);
    if (!problem_.empty()) return;
    const std::span<const float> received = round == 0 ? key.parameters<float>() : result;
    for (std::uint64_t i = 0; i < received.size(); ++i) {
      const auto owner = static_cast<std::uint32_t>(i / kPart);
      if (std::bit_cast<std::uint32_t>(received[i]) == Bits(owner, round, i % kPart)) continue;
      problem_ = "round " + std::to_string(round) + " element " + std::to_string(i);
      return;
    }
  }
  void ReduceScatter(Key& key, int round) {
    std::vector<float> all(ranks_ * kPart);
    for (std::uint64_t i = 0; i < all.size(); ++i) all[i] = Term(rank_, round, i);
    std::vector<float> own(all.size());
    std::vector<float> result(kPart);
    Push(key, round, all, own, result);
    if (!problem_.empty()) return;
    const std::span<const float> received = round == 0 ? key.parameters<float>() : result;
    for (std::uint64_t i = 0; i < kPart; ++i) {
      const std::uint64_t element = rank_ * kPart + i;
      float sum = Term(0, round, element);
      for (std::uint32_t rank = 1; rank < ranks_; ++rank) sum += Term(rank, round, element);
      if (received[i] == sum) continue;
      problem_ = "round " + std::to_string(round) + " element " + std::to_string(i);
      return;
    }
  }

  const std::uint32_t rank_;
  const std::uint32_t ranks_;
  std::optional<Job> job_;
  std::string problem_;
};

void RunJob(const std::string& endpoint, const Setting& setting, bool gathers) {
  std::vector<std::string> problems(setting.ranks);
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < setting.ranks; ++rank) {
    ranks.emplace_back([&, rank] { problems[rank] = Rank(endpoint, setting, rank).Run(gathers); });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

class Movements : public ::testing::TestWithParam<Setting> {
 protected:
  // Every rank has sent and received this much in each round.
  void ExpectMoved(std::uint64_t sent, std::uint64_t received) const {
    const std::uint64_t pushes = std::uint64_t{kRounds} * GetParam().ranks;
    EXPECT_EQ(TenantMetric(daemon_.endpoint(), "phub_tenant_gradient_bytes_total"), pushes * sent);
    EXPECT_EQ(TenantMetric(daemon_.endpoint(), "phub_tenant_reply_bytes_total"), pushes * received);
  }

  DaemonProcess daemon_{{"--cores", "2", "--pin", "off"}};
};

TEST_P(Movements, AGatherSendsOnePartAndReceivesAll) {
  RunJob(daemon_.endpoint(), GetParam(), /*gathers=*/true);
  ExpectMoved(kPartBytes, GetParam().ranks * kPartBytes);
}

TEST_P(Movements, AReduceScatterSendsAllAndReceivesOnePart) {
  RunJob(daemon_.endpoint(), GetParam(), /*gathers=*/false);
  ExpectMoved(GetParam().ranks * kPartBytes, kPartBytes);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, Movements,
    ::testing::Values(Setting{"SharedMemory2", 2, TransportChoice::kSharedMemory},
                      Setting{"SharedMemory4", 4, TransportChoice::kSharedMemory},
                      Setting{"Tcp2", 2, TransportChoice::kTcp},
                      Setting{"Tcp4", 4, TransportChoice::kTcp}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(Movement, KeysThatCannotMoveThisWayAreRefusedByName) {
  DaemonProcess daemon;
  auto session = Connect(daemon.endpoint());
  ASSERT_TRUE(session.ok());
  auto job = session->Join({.job = "refused", .rank = 0, .world_size = 2});
  ASSERT_TRUE(job.ok());
  const auto refusal = [&](std::uint64_t elements, const Optimizer& optimizer, KeyOptions options) {
    const auto key = job->AddKey("w", f32, elements, optimizer, options);
    return key.ok() ? std::string() : ToString(key.status());
  };
  KeyOptions gather{.movement = Movement::kGather};
  EXPECT_THAT(refusal(7, None{}, gather), HasSubstr("7 elements cannot be divided among 2 ranks"));
  EXPECT_THAT(refusal(8, Adam{}, gather), HasSubstr("movement gather does not allow an optimizer"));
  gather.operation = Operation::kMax;
  EXPECT_THAT(refusal(8, None{}, gather), HasSubstr("moves bytes and has no operation"));
  gather = {.movement = Movement::kGather, .parameter_type = bf16};
  EXPECT_THAT(refusal(8, None{}, gather), HasSubstr("parameter_type must be f32"));
  auto key = job->AddKey("scattered", f32, 8, None{}, {.movement = Movement::kReduceScatter});
  ASSERT_TRUE(key.ok()) << ToString(key.status());
  EXPECT_EQ(key->gradients().count, 8u);
  EXPECT_EQ(key->parameters().count, 4u);
  EXPECT_THAT(ToString(job->Broadcast(*key, 0).Wait()),
              HasSubstr("key scattered of job refused, rank 0 has movement reduce_scatter"));
  EXPECT_THAT(ToString(job->Initialize(*key, std::vector<float>(8))), HasSubstr("movement"));
}

}  // namespace
}  // namespace phub::process
