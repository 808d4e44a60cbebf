// Runs in the guest: pools, groups, keys that move parts and compressed keys over verbs have the
// bits that they have over tcp, which other tests compare with references.
//   verbs-collectives ENDPOINT
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "phub/client.h"
#include "phub/group.h"
#include "phub/pool.h"
#include "tests/process/join_all.h"

namespace phub::process {
namespace {

std::string endpoint;  // NOLINT: main() sets it once

constexpr std::uint32_t kRanks = 3;
constexpr std::size_t kPart = 32768 + 77;            // floats: not a whole number of chunks
constexpr std::chrono::seconds kGuestPatience{120};  // emulated, everything takes longer

using Bytes = std::vector<std::byte>;

// Sums of these depend on their order.
float ValueOf(std::uint32_t rank, std::size_t element, int round) {
  const float large = rank % 2 == 0 ? 1.0e8f : -1.0e8f;
  return large + 0.37f * static_cast<float>(7 * rank + element % 101) + static_cast<float>(round);
}

void Fill(std::span<float> values, std::uint32_t rank, int round) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = ValueOf(rank, i, round);
}

void Append(ConstElements values, std::size_t element_bytes, Bytes& results) {
  const auto* const from = static_cast<const std::byte*>(values.data);
  results.insert(results.end(), from, from + values.count * element_bytes);
}

std::uint32_t RootOf(Movement movement) {
  return movement == Movement::kScatter || movement == Movement::kGatherToOne ? 1 : 0;
}

// All ranks of a job, in this thread.
class Collectives : public ::testing::Test {
 protected:
  void Join(TransportChoice transport) {
    jobs_ = JoinAll(endpoint, {.job = transport == TransportChoice::kVerbs ? "verbs" : "tcp",
                               .world_size = kRanks,
                               .transport = transport});
    ASSERT_EQ(jobs_.size(), kRanks);
    if (transport != TransportChoice::kVerbs) return;
    for (const Job& job : jobs_) EXPECT_EQ(job.transports(), "verbs");
  }
  static void WaitFor(std::vector<Handle>& handles) {
    for (const Handle& handle : handles) {
      const Status status = handle.Wait(kGuestPatience);
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
    handles.clear();
  }
  // `run` appends its results.
  void ExpectEqualBits(const std::function<void(Bytes& results)>& run) {
    Bytes results[2];
    const TransportChoice transports[] = {TransportChoice::kTcp, TransportChoice::kVerbs};
    for (int i = 0; i < 2; ++i) {
      ASSERT_NO_FATAL_FAILURE(Join(transports[i]));
      ASSERT_NO_FATAL_FAILURE(run(results[i]));
      for (Job& job : jobs_) {
        const Status left = job.Leave();
        EXPECT_TRUE(left.ok()) << ToString(left);
      }
      jobs_.clear();
    }
    EXPECT_GT(results[0].size(), 0u);
    EXPECT_TRUE(results[0] == results[1]);
    std::printf("%zu bytes are equal\n", results[1].size());
  }

  std::vector<Job> jobs_;
};

TEST_F(Collectives, PoolsReduceAndBroadcast) {
  ExpectEqualBits([&](Bytes& results) {
    std::vector<Pool> pools;
    for (Job& job : jobs_) {
      Result<Pool> pool = Pool::Add(job, {.name = "pool", .capacity_bytes = 1 << 17, .depth = 8});
      ASSERT_TRUE(pool.ok()) << ToString(pool.status());
      pools.push_back(*std::move(pool));
    }
    std::vector<Handle> handles;
    for (const std::size_t length : {1u, 1000u, 40'000u}) {  // the last one takes two rounds
      for (std::uint32_t root = 0; root < kRanks; ++root) {
        std::vector<std::vector<float>> sums, moved;
        for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
          sums.emplace_back(length);
          Fill(sums.back(), rank, static_cast<int>(root));
          moved.push_back(sums.back());
        }
        for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
          handles.push_back(
              pools[rank].AllReduce(std::span<const float>(sums[rank]), std::span(sums[rank])));
          handles.push_back(pools[rank].Broadcast(std::span(moved[rank]), root));
        }
        ASSERT_NO_FATAL_FAILURE(WaitFor(handles));
        for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
          EXPECT_EQ(moved[rank], moved[root]);
          Append(std::span<const float>(sums[rank]), sizeof(float), results);
          Append(std::span<const float>(moved[rank]), sizeof(float), results);
        }
      }
    }
  });
}

TEST_F(Collectives, GroupsExchangeNextToEachOther) {
  ExpectEqualBits([&](Bytes& results) {
    const std::vector<std::vector<std::uint32_t>> members = {{0, 1}, {1, 2}, {0, 2}};
    std::vector<Key> keys;
    std::vector<Pool> pools;
    for (std::size_t g = 0; g < members.size(); ++g) {
      for (const std::uint32_t rank : members[g]) {
        Result<Group> group = jobs_[rank].NewGroup("g" + std::to_string(g), members[g]);
        ASSERT_TRUE(group.ok()) << ToString(group.status());
        Result<Key> key = group->AddKey("sum", f32, kPart);
        ASSERT_TRUE(key.ok()) << ToString(key.status());
        Fill(key->gradients<float>(), rank, static_cast<int>(g));
        keys.push_back(*std::move(key));
        Result<Pool> pool = Pool::Add(*group, {.name = "messages", .capacity_bytes = 1 << 16});
        ASSERT_TRUE(pool.ok()) << ToString(pool.status());
        pools.push_back(*std::move(pool));
      }
    }
    std::vector<Handle> handles;
    std::vector<std::vector<float>> messages;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      messages.emplace_back(20'000);
      Fill(messages.back(), static_cast<std::uint32_t>(i), 0);
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      handles.push_back(keys[i].PushPull());
      handles.push_back(pools[i].Broadcast(std::span(messages[i]), members[i / 2].back()));
    }
    ASSERT_NO_FATAL_FAILURE(WaitFor(handles));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(messages[i], messages[i | 1]);
      Append(keys[i].parameters(), sizeof(float), results);
      Append(std::span<const float>(messages[i]), sizeof(float), results);
    }
  });
}

TEST_F(Collectives, PartsArriveWhereTheyBelong) {
  constexpr Movement kMovements[] = {Movement::kGather, Movement::kReduceScatter,
                                     Movement::kAllToAll, Movement::kScatter,
                                     Movement::kGatherToOne};
  ExpectEqualBits([&](Bytes& results) {
    for (const Movement movement : kMovements) {
      std::vector<Key> keys;
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        Result<Key> key = jobs_[rank].AddKey(
            "move" + std::to_string(static_cast<int>(movement)), f32, kRanks * kPart, None{},
            {.movement = movement, .root = RootOf(movement), .collective = true});
        ASSERT_TRUE(key.ok()) << ToString(key.status());
        keys.push_back(*std::move(key));
      }
      for (int round = 0; round < 2; ++round) {
        std::vector<Handle> handles;
        for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
          Fill(keys[rank].gradients<float>(), rank, round);
          handles.push_back(keys[rank].PushPull());
        }
        ASSERT_NO_FATAL_FAILURE(WaitFor(handles));
        for (const Key& key : keys) Append(key.parameters(), sizeof(float), results);
      }
    }
  });
}

TEST_F(Collectives, CompressedGradientsAreDecoded) {
  const Compression kinds[] = {Compression::Int8(), Compression::TopK(0.01),
                               Compression::RandomK(0.05)};
  ExpectEqualBits([&](Bytes& results) {
    for (const Compression& kind : kinds) {
      std::vector<Key> keys;
      for (Job& job : jobs_) {
        Result<Key> key = job.AddKey("k" + std::to_string(static_cast<int>(kind.kind)), f32,
                                     3 * kPart, Adam{.learning_rate = 0.01}, {.compression = kind});
        ASSERT_TRUE(key.ok()) << ToString(key.status());
        keys.push_back(*std::move(key));
      }
      for (int round = 0; round < 3; ++round) {
        std::vector<Handle> handles;
        for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
          std::span<float> gradients = keys[rank].gradients<float>();
          for (std::size_t i = 0; i < gradients.size(); ++i)
            gradients[i] = std::ldexp(static_cast<float>((i * 7 + rank * 13) % 101) - 50.0f,
                                      static_cast<int>(i % 23) - 20);
          handles.push_back(keys[rank].PushPull());
        }
        ASSERT_NO_FATAL_FAILURE(WaitFor(handles));
      }
      for (const Key& key : keys) Append(key.parameters(), sizeof(float), results);
    }
  });
}

}  // namespace
}  // namespace phub::process

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: verbs-collectives ENDPOINT\n");
    return 2;
  }
  phub::process::endpoint = argv[1];
  return RUN_ALL_TESTS();
}
