// A program that keeps the shared memory of its jobs after they have ended: what the daemon says is
// used, compared with what is used. Meanwhile another tenant's job trains on.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "phub/client.h"
#include "tests/process/rack_process.h"
#include "tests/process/reserved_memory.h"
#include "tests/process/steady_training.h"

namespace phub::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kMemoryMax = 256 << 20;
constexpr std::uint64_t kQuota = 176 << 20;        // for the tenant that keeps memory
constexpr std::uint64_t kHoardElements = 6 << 20;  // 24 MiB of parameters, and as much of gradients

// Second mappings of the memory that this process shares with the daemon, except what it shared
// before. Duplicates need neither a descriptor nor the client's consent.
class Hoard {
 public:
  Hoard() {
    for (const std::span<std::byte> each : SharedMappings()) others_.insert(each.data());
  }
  ~Hoard() { Return(); }
  void KeepAll() {
    for (const std::span<std::byte> each : SharedMappings()) {
      if (kept_.contains(each.data()) || others_.contains(each.data())) continue;
      // A size of 0 duplicates a shared mapping.
      void* copy = mremap(each.data(), 0, each.size(), MREMAP_MAYMOVE);
      ASSERT_NE(copy, MAP_FAILED);
      kept_[static_cast<std::byte*>(copy)] = each.size();
    }
  }
  void Return() {
    for (const auto& [data, bytes] : kept_) munmap(data, bytes);
    kept_.clear();
  }
  // What is resident of it. Reads all of it first.
  std::uint64_t ResidentBytes() const {
    std::uint64_t resident = 0;
    for (const auto& [data, bytes] : kept_) {
      const auto pages = (bytes + 4095) / 4096;
      std::vector<unsigned char> in_memory(pages);
      if (mincore(data, bytes, in_memory.data()) != 0) continue;
      for (const unsigned char page : in_memory) resident += (page & 1u) * 4096;
    }
    return resident;
  }

 private:
  static std::vector<std::span<std::byte>> SharedMappings() {
    std::ifstream maps("/proc/self/maps");
    std::vector<std::span<std::byte>> found;
    for (std::string line; std::getline(maps, line);) {
      unsigned long begin = 0;
      unsigned long end = 0;
      if (line.find("memfd:phub-") == std::string::npos) continue;
      if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
      found.emplace_back(reinterpret_cast<std::byte*>(begin), end - begin);
    }
    return found;
  }

  std::set<std::byte*> others_;  // of jobs that had memory before
  std::map<std::byte*, std::size_t> kept_;
};

class LeftMemory : public ::testing::Test {
 protected:
  LeftMemory()
      : rack_(1, {"--cores", "2", "--pin", "off", "--memory-max", std::to_string(kMemoryMax)}) {}
  std::uint64_t Reserved() { return ReservedBytes(rack_.endpoint(0)); }
  // The memory of the last job is freed a moment after its last rank has left.
  std::uint64_t ReservedWhenBelow(std::uint64_t limit) {
    std::uint64_t reserved = Reserved();
    for (int i = 0; i < 200 && reserved > limit; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      reserved = Reserved();
    }
    return reserved;
  }
  // Runs a job of one rank and keeps its memory.
  Status Run(Hoard& hoard, const std::string& tenant = "default") {
    auto session = Connect(rack_.endpoint(0), {.tenant = tenant});
    if (!session.ok()) return session.status();
    auto job = session->Join({.job = "hoard"});
    if (!job.ok()) return job.status();
    auto key = job->AddKey("weights", f32, kHoardElements, Sgd{.learning_rate = 1.0});
    if (!key.ok()) return key.status();
    if (Status status = key->PushPull().Wait(); !status.ok()) return status;
    hoard.KeepAll();
    return job->Leave();
  }

  RackProcess rack_;
};

TEST_F(LeftMemory, IsChargedWhileAProgramKeepsItAndLimitsWhatItGets) {
  ASSERT_TRUE(rack_.serving()) << rack_.Outputs();
  const std::string quota = std::to_string(kQuota);
  ASSERT_EQ(rack_.Ask(0, {"tenant", "create", "acme", "--memory", quota}).exit, Exit::WithCode(0));
  SteadyTraining victim({rack_.endpoint(0)}, {.job = "victim", .world_size = 2}, 50 * kMillisecond);
  ASSERT_TRUE(victim.WaitFor(1)) << rack_.Outputs();
  const std::uint64_t before = Reserved();
  Hoard hoard;
  const auto left_bytes = [&] {
    return TenantMetric(rack_.endpoint(0), "phub_tenant_left_memory_bytes", "acme");
  };
  Status refused;
  std::size_t runs = 0;
  for (; runs < 20; ++runs) {
    refused = Run(hoard, "acme");
    if (!refused.ok()) break;
    // Expect: what is kept is charged, and nothing else of a job that has ended.
    const std::uint64_t kept = hoard.ResidentBytes();
    ASSERT_GT(kept, (runs + 1) * kHoardElements * sizeof(float));
    const std::uint64_t reserved = ReservedWhenBelow(before + kept + (1 << 20));
    EXPECT_GE(reserved + (1 << 20), before + kept);
    EXPECT_LE(reserved, before + kept + (1 << 20));
    EXPECT_LE(kept, kQuota);
    // Expect: the metric counts it.
    const std::uint64_t left = left_bytes();
    EXPECT_GE(left + (1 << 20), kept);
    EXPECT_LE(left, kept + (1 << 20));
  }
  EXPECT_GE(runs, 2u);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.message();
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("still use shared memory of workers that left: hoard ("),
                    HasSubstr("/proc/[0-9]*/maps")));
  EXPECT_LE(hoard.ResidentBytes(), kQuota);
  // Another tenant has noticed nothing, and starts new jobs (Finish() compares with one).
  const std::uint64_t trained = victim.iteration();
  EXPECT_TRUE(victim.WaitFor(trained + 1));
  EXPECT_EQ(victim.Finish(), "");
  hoard.Return();
  EXPECT_LT(ReservedWhenBelow(before - 1), before);
  EXPECT_EQ(left_bytes(), 0u);
  EXPECT_TRUE(Run(hoard, "acme").ok());
}

// See phub::Key in client.h.
TEST_F(LeftMemory, ParametersCanBeReadAfterLeaveAndAreChargedUntilTheirKeyIsGone) {
  ASSERT_TRUE(rack_.serving()) << rack_.Outputs();
  const std::uint64_t before = Reserved();
  std::optional<Key> kept;
  {
    auto session = Connect(rack_.endpoint(0));
    ASSERT_TRUE(session.ok());
    auto job = session->Join({.job = "evaluated"});
    ASSERT_TRUE(job.ok()) << job.status().message();
    auto key = job->AddKey("weights", f32, kHoardElements, Sgd{.learning_rate = 1.0});
    ASSERT_TRUE(key.ok()) << key.status().message();
    std::ranges::fill(key->gradients<float>(), 3.0f);
    ASSERT_TRUE(key->PushPull().Wait().ok());
    ASSERT_TRUE(job->Leave().ok());
    kept = *key;
  }
  constexpr std::uint64_t kBytes = kHoardElements * sizeof(float);
  const std::uint64_t reserved = ReservedWhenBelow(before + 2 * kBytes + (1 << 20));
  EXPECT_GE(reserved, before + kBytes);
  EXPECT_LE(reserved, before + 2 * kBytes + (1 << 20));
  // Another job gets its own memory, and does not change these.
  Hoard hoard;
  ASSERT_TRUE(Run(hoard).ok());
  hoard.Return();
  const auto parameters = kept->parameters<float>();
  EXPECT_EQ(std::ranges::count(parameters, -3.0f), static_cast<std::ptrdiff_t>(kHoardElements));
  kept.reset();
  EXPECT_EQ(ReservedWhenBelow(before), before);
}

// Programs take a moment to exit. A job that is started meanwhile waits for their memory.
TEST_F(LeftMemory, AJobThatIsStartedBeforeItIsReturnedWaits) {
  ASSERT_TRUE(rack_.serving()) << rack_.Outputs();
  const std::uint64_t before = Reserved();
  Hoard hoard;
  ASSERT_TRUE(Run(hoard).ok());
  const std::uint64_t kept = hoard.ResidentBytes();
  EXPECT_LE(ReservedWhenBelow(before + kept + (1 << 20)), before + kept + (1 << 20));
  auto session = Connect(rack_.endpoint(0));
  ASSERT_TRUE(session.ok());
  std::thread returns([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    hoard.Return();
  });
  // Its staging memory, twice 110 MiB, needs nearly all of memory_max.
  const auto job = session->Join({.job = "next", .staging_bytes = 110 << 20});
  returns.join();
  EXPECT_TRUE(job.ok()) << job.status().message();
}

}  // namespace
}  // namespace phub::process
