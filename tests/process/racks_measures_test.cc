// Compares the output of phubctl job get for jobs that span racks with the values that follow from
// the keys' sizes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <phub/client.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "phub/v1/admin.pb.h"
#include "tests/process/rack_process.h"

namespace phub::process {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr std::uint32_t kRacks = 3;
constexpr std::uint32_t kRanks = 6;
constexpr std::uint64_t kWide = 100'003;  // elements of a key with 4 bytes per element throughout
constexpr std::uint64_t kHalf = 20'021;   // key summed with 4 bytes, answered with 2
constexpr std::uint64_t kRounds = 9;
constexpr std::uint64_t kPartialBytes = 4 * (kWide + kHalf);
constexpr std::uint64_t kResultBytes = 4 * kWide + 2 * kHalf;

Status Train(const std::string& endpoint, std::uint32_t rank, const std::string& plan) {
  auto session = Connect(endpoint);
  if (!session.ok()) return session.status();
  auto job = session->Join({.job = plan, .rank = rank, .world_size = kRanks, .plan = plan});
  if (!job.ok()) return job.status();
  auto wide = job->AddKey("wide", f32, kWide, None{});
  if (!wide.ok()) return wide.status();
  auto half = job->AddKey("half", bf16, kHalf, None{});
  if (!half.ok()) return half.status();
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    Handle first = wide->PushPull(), second = half->PushPull();
    if (Status status = first.Wait(); !status.ok()) return status;
    if (Status status = second.Wait(); !status.ok()) return status;
  }
  if (Status status = job->Barrier(); !status.ok()) return status;
  return job->Leave();
}

void TrainEverywhere(const RackProcess& racks, const std::string& plan) {
  std::mutex mutex;
  std::vector<std::thread> ranks;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const Status status = Train(racks.endpoint(rank / (kRanks / kRacks)), rank, plan);
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(status.ok()) << rank << ": " << ToString(status);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

v1::ExchangeInfo ShownAt(const RackProcess& racks, std::size_t rack, const std::string& job) {
  v1::JobInfo info;
  const Finished shown = racks.Ask(rack, {"job", "get", job, "-o", "json"});
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(shown.output, &info).ok())
      << shown.output;
  return info.exchange();
}

const v1::ExchangeLink* LinkTo(const v1::ExchangeInfo& info, std::uint32_t rack) {
  for (const v1::ExchangeLink& link : info.links()) {
    if (link.rack() == rack) return &link;
  }
  return nullptr;
}

class RackMeasures : public ::testing::TestWithParam<const char*> {};

TEST_P(RackMeasures, BytesOfEveryLaneAreWhatTheSizesDemand) {
  const std::string plan = GetParam();
  const RackProcess racks(kRacks, {"--cores", "2", "--pin", "off", "--chunk-bytes", "4KiB"},
                          RackProcess::Kind::kManyRacks);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  TrainEverywhere(racks, plan);
  std::vector<v1::ExchangeInfo> shown;
  for (std::size_t rack = 0; rack < kRacks; ++rack) shown.push_back(ShownAt(racks, rack, plan));
  std::uint64_t partial_bytes = 0, result_bytes = 0;
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    EXPECT_EQ(shown[rack].exchange_bytes(), kPartialBytes);
    EXPECT_GT(shown[rack].predicted_exchange_ns(), 0);
    std::uint64_t own_tree_bytes = 0;
    for (const v1::ExchangeSpan& span : shown[rack].spans()) {
      EXPECT_EQ(span.exchanges(), kRounds) << span.DebugString();
      EXPECT_GT(span.predicted_ns(), 0) << span.DebugString();
      if (span.stage() != "whole") continue;
      if (span.tree() >= 0) own_tree_bytes += span.bytes();
      EXPECT_TRUE(span.tree() >= 0 || span.mean_ns() > 0) << span.DebugString();
    }
    EXPECT_EQ(own_tree_bytes, kPartialBytes);
    for (std::uint32_t other = 0; other < kRacks; ++other) {
      if (other == rack) continue;
      const v1::ExchangeLink* const there = LinkTo(shown[rack], other);
      const v1::ExchangeLink* const back = LinkTo(shown[other], rack);
      ASSERT_EQ(there == nullptr, back == nullptr);
      if (there == nullptr) continue;  // no tree has an edge between them
      EXPECT_EQ(there->partial_bytes_sent(), back->partial_bytes_received());
      EXPECT_EQ(there->result_bytes_sent(), back->result_bytes_received());
      EXPECT_EQ(there->partials_sent(), back->partials_received());
      EXPECT_EQ(there->results_sent(), back->results_received());
      EXPECT_EQ(there->messages_taken(), there->partials_sent() + there->results_sent());
      partial_bytes += there->partial_bytes_sent();
      result_bytes += there->result_bytes_sent();
    }
  }
  // Each sum except the home's passes one lane, and so does each result except the home's.
  EXPECT_EQ(partial_bytes, (kRacks - 1) * kPartialBytes * kRounds);
  EXPECT_EQ(result_bytes, (kRacks - 1) * kResultBytes * kRounds);
  const std::string text = racks.Ask(1, {"job", "get", plan}).output;
  EXPECT_THAT(text, ContainsRegex("predicted +[0-9.]+ .s for this job's 469 KiB"));
  EXPECT_THAT(text, ContainsRegex("exchange +all +- +469 KiB +[0-9.]+ .s +[0-9.]+ .s"));
  EXPECT_THAT(text, HasSubstr("this one"));
  EXPECT_THAT(racks.Ask(1, {"job", "get", plan, "-o", "wide"}).output, HasSubstr("RESULTS SENT"));
}

INSTANTIATE_TEST_SUITE_P(Plans, RackMeasures,
                         ::testing::Values("ring", "sharded-star", "double-binary-tree"));

// Expect: every rack's daemon shows which rack's partial sums the job waits for.
TEST(RackJobs, ASlowRackIsToBeSeen) {
  const RackProcess racks(2, {"--cores", "1", "--pin", "off"}, RackProcess::Kind::kManyRacks);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  const auto train = [&](std::uint32_t rank) -> Status {
    auto session = Connect(racks.endpoint(rank));
    if (!session.ok()) return session.status();
    auto job =
        session->Join({.job = "slow", .rank = rank, .world_size = 2, .plan = "sharded-star"});
    if (!job.ok()) return job.status();
    auto key = job->AddKey("w", f32, 64 * 1024, None{});
    if (!key.ok()) return key.status();
    for (int round = 0; round < 20; ++round) {
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (Status status = key->PushPull().Wait(); !status.ok()) return status;
    }
    return job->Leave();
  };
  Status first;
  std::thread other([&] { first = train(0); });
  const Status second = train(1);
  other.join();
  ASSERT_TRUE(first.ok() && second.ok()) << ToString(first) << ToString(second);
  const v1::ExchangeInfo at_fast = ShownAt(racks, 0, "slow"), at_slow = ShownAt(racks, 1, "slow");
  const auto mean_of = [](const v1::ExchangeLink* link) {
    return link->sums_awaited_ns() / std::max<std::uint64_t>(1, link->sums_last());
  };
  EXPECT_GT(mean_of(LinkTo(at_fast, 1)), 10'000'000u);
  EXPECT_GT(mean_of(LinkTo(at_slow, 1)), 10'000'000u);
  EXPECT_GT(LinkTo(at_fast, 1)->sums_last(), LinkTo(at_fast, 0)->sums_last());
}

}  // namespace
}  // namespace phub::process
