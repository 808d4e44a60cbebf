// Keys with other movements than all-reduce: exact results over every transport of one host, and
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
constexpr std::uint32_t kRoot = 1;

const char* NameOf(Movement movement) {
  switch (movement) {
    case Movement::kAllReduce: break;
    case Movement::kGather: return "gather";
    case Movement::kReduceScatter: return "reduce_scatter";
    case Movement::kAllToAll: return "all_to_all";
    case Movement::kScatter: return "scatter";
    case Movement::kGatherToOne: return "gather_to_one";
  }
  return "all_reduce";
}

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

  std::string Run(Movement movement) {
    if (!problem_.empty()) return problem_;
    KeyOptions options;
    options.movement = movement;
    if (movement == Movement::kScatter || movement == Movement::kGatherToOne) options.root = kRoot;
    auto key = job_->AddKey(NameOf(movement), f32, ranks_ * kPart, None{}, options);
    if (!key.ok()) return ToString(key.status());
    // In phub's memory, in this process's, and with the own part where it is in the whole.
    for (int round = 0; round < kRounds; ++round) {
      movement == Movement::kReduceScatter ? ReduceScatter(*key, round)
                                           : Move(*key, movement, round);
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
  // The bits of an element that this rank receives.
  std::uint32_t Expected(Movement movement, int round, std::uint64_t element) const {
    const auto part = static_cast<std::uint32_t>(element / kPart);
    const std::uint64_t own = rank_ * kPart;
    switch (movement) {
      case Movement::kAllToAll: return Bits(part, round, own + element % kPart);
      case Movement::kScatter: return Bits(kRoot, round, own + element);
      default: return Bits(part, round, element % kPart);  // gathers
    }
  }
  void Move(Key& key, Movement movement, int round) {
    const std::uint64_t sent = key.gradients().count;
    std::vector<float> pushed(sent);
    for (std::uint64_t i = 0; i < sent; ++i)
      pushed[i] = std::bit_cast<float>(Bits(rank_, round, i));
    std::vector<float> own(sent);
    std::vector<float> result(key.parameters().count);
    std::span<float> from(own);
    std::span<float> to(result);
    const std::uint64_t place = rank_ * kPart;
    if (round == 2 && from.size() < to.size() && !from.empty()) from = to.subspan(place, kPart);
    if (round == 2 && to.size() < from.size() && !to.empty()) to = from.subspan(place, kPart);
    Push(key, round, pushed, from, to);
    if (!problem_.empty()) return;
    const std::span<const float> received = round == 0 ? key.parameters<float>() : to;
    for (std::uint64_t i = 0; i < received.size(); ++i) {
      if (std::bit_cast<std::uint32_t>(received[i]) == Expected(movement, round, i)) continue;
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

void RunJob(const std::string& endpoint, const Setting& setting, Movement movement) {
  std::vector<std::string> problems(setting.ranks);
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < setting.ranks; ++rank) {
    ranks.emplace_back([&, rank] { problems[rank] = Rank(endpoint, setting, rank).Run(movement); });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
}

class Movements : public ::testing::TestWithParam<Setting> {
 protected:
  // All ranks together have sent and received so many parts in each round.
  void ExpectMoved(std::uint64_t sent, std::uint64_t received) const {
    const std::uint64_t bytes = std::uint64_t{kRounds} * kPartBytes;
    EXPECT_EQ(TenantMetric(daemon_.endpoint(), "phub_tenant_gradient_bytes_total"), bytes * sent);
    EXPECT_EQ(TenantMetric(daemon_.endpoint(), "phub_tenant_reply_bytes_total"), bytes * received);
  }
  const std::uint64_t ranks_ = GetParam().ranks;

  DaemonProcess daemon_{{"--cores", "2", "--pin", "off"}};
};

TEST_P(Movements, AGatherSendsOnePartAndReceivesAll) {
  RunJob(daemon_.endpoint(), GetParam(), Movement::kGather);
  ExpectMoved(ranks_, ranks_ * ranks_);
}

TEST_P(Movements, AReduceScatterSendsAllAndReceivesOnePart) {
  RunJob(daemon_.endpoint(), GetParam(), Movement::kReduceScatter);
  ExpectMoved(ranks_ * ranks_, ranks_);
}

TEST_P(Movements, AnAllToAllSendsAndReceivesAPartForEveryRank) {
  RunJob(daemon_.endpoint(), GetParam(), Movement::kAllToAll);
  ExpectMoved(ranks_ * ranks_, ranks_ * ranks_);
}

TEST_P(Movements, AScatterSendsFromTheRootAndReceivesOnePart) {
  RunJob(daemon_.endpoint(), GetParam(), Movement::kScatter);
  ExpectMoved(ranks_, ranks_);
}

TEST_P(Movements, AGatherToOneSendsOnePartAndReceivesAtTheRoot) {
  RunJob(daemon_.endpoint(), GetParam(), Movement::kGatherToOne);
  ExpectMoved(ranks_, ranks_);
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
  EXPECT_THAT(refusal(7, None{}, {.movement = Movement::kAllToAll}),
              HasSubstr("7 elements cannot be divided among 2 ranks"));
  EXPECT_THAT(refusal(8, None{}, {.movement = Movement::kScatter, .root = 2}),
              HasSubstr("root is 2, but the job has only 2 ranks"));
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
