// Ranks that disagree about options, keys or rounds: the error names both ranks and what each has.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <string>
#include <vector>

#include "phub/client.h"
#include "tests/process/daemon_process.h"
#include "tests/process/rack_process.h"

namespace phub::process {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kRoundPatience{60};

class Disagreements : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(daemon_.endpoint().empty()) << daemon_.process().Outputs(); }
  Result<Job> Join(std::uint32_t rank, const std::string& name, JobOptions options = {}) const {
    options.job = name;
    options.rank = rank;
    if (options.world_size == 1) options.world_size = 2;
    auto session = Connect(daemon_.endpoint());
    if (!session.ok()) return session.status();
    return session->Join(options);
  }
  // Runs both ranks of a job of its own and returns their errors.
  std::vector<std::string> Run(const std::function<Status(Job&)>& first,
                               const std::function<Status(Job&)>& second, JobOptions options) {
    const std::string name = fmt::format("job{}", ++jobs_);
    const auto run = [&](std::uint32_t rank, const std::function<Status(Job&)>& program) {
      return std::async(std::launch::async, [&, rank] {
        auto job = Join(rank, name, options);
        if (!job.ok()) return ToString(job.status());
        const Status status = program(*job);
        return ToString(status);
      });
    };
    std::future<std::string> of_first = run(0, first);
    std::future<std::string> of_second = run(1, second);
    return {of_first.get(), of_second.get()};
  }

  DaemonProcess daemon_;
  int jobs_ = 0;
};

void ExpectNamesBoth(const std::string& error, const std::vector<std::string>& values) {
  EXPECT_THAT(error, HasSubstr("rank 0 ("));
  EXPECT_THAT(error, HasSubstr("rank 1 ("));
  for (const std::string& value : values) EXPECT_THAT(error, HasSubstr(value));
}

TEST_F(Disagreements, AboutOptionsShowBothValues) {
  const JobOptions waits{.on_loss = LossPolicy::kWait, .wait_timeout = milliseconds(60'000)};
  const JobOptions whole{.apply = Apply::kIteration, .clip_norm = 0.5};
  const auto with = [](JobOptions options, const std::function<void(JobOptions&)>& change) {
    change(options);
    return options;
  };
  struct Case {
    JobOptions first, second;
    std::vector<std::string> values;
  };
  const Case cases[] = {
      {{.world_size = 2}, {.world_size = 3}, {"world_size 3", "created it with 2"}},
      {{}, {.chunk_bytes = 4096}, {"chunk_bytes 4096", "created it with 131072"}},
      {{.staging_bytes = 1 << 20},
       {.staging_bytes = 1 << 21},
       {"staging_bytes_per_lane 2097152", "1048576"}},
      {{}, waits, {"on_loss wait", "created it with fail"}},
      {waits,
       with(waits, [](JobOptions& o) { o.wait_timeout = milliseconds(60'001); }),
       {"wait_timeout 60.001 s", "created it with 60 s"}},
      {waits,
       with(waits, [](JobOptions& o) { o.restart = true; }),
       {"restart=true", "restart=false"}},
      {{.join_timeout = milliseconds(50'010)},
       {.join_timeout = milliseconds(50'020)},
       {"join_timeout 50.02 s", "created it with 50.01 s"}},
      {{}, {.screening = Screening::kReject}, {"screening reject", "created it with report"}},
      {{}, {.apply = Apply::kIteration}, {"apply iteration", "created it with chunk"}},
      {whole,
       with(whole, [](JobOptions& o) { o.clip_norm = 0.25; }),
       {"clip_norm 0.25", "created it with 0.5"}},
      {whole,
       with(whole, [](JobOptions& o) { o.skip_nonfinite = true; }),
       {"skip_nonfinite=true", "skip_nonfinite=false"}},
      {{}, {.sum = Sum::kFixed}, {"sum fixed", "created it with float"}},
      {{.sum = Sum::kFixed},
       {.sum = Sum::kFixed, .sum_block = 64},
       {"sum_block 64", "created it with 350"}},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.values[0]);
    const std::string name = fmt::format("job{}", ++jobs_);
    auto first = Join(0, name, each.first);
    ASSERT_TRUE(first.ok()) << ToString(first.status());
    auto second = Join(1, name, each.second);
    ASSERT_FALSE(second.ok());
    ExpectNamesBoth(ToString(second.status()), each.values);
  }
}

TEST_F(Disagreements, AboutKeysShowBothValues) {
  const KeySpec key{.name = "w", .element_count = 8, .optimizer = Sgd{.learning_rate = 0.1}};
  const auto with = [&](const std::function<void(KeySpec&)>& change) {
    KeySpec changed = key;
    change(changed);
    return std::vector<KeySpec>{changed};
  };
  KeySpec other = key;
  other.name = "v";
  struct Case {
    std::vector<KeySpec> first, second;
    std::vector<std::string> values;
  };
  const Case cases[] = {
      {{key}, {other}, {"\"w\" with 8 elements", "\"v\" with 8 elements"}},
      {{key, other}, {key}, {"added 2", "added 1", "\"v\""}},
      {{key, other}, {other, key}, {"\"w\"", "\"v\""}},
      {{key}, with([](KeySpec& k) { k.element_count = 9; }), {"8 elements", "9 elements"}},
      {{key},
       with([](KeySpec& k) {
         k.tensors = {2, 6};
       }),
       {"one tensor", "2 tensors"}},
      {with([](KeySpec& k) {
         k.tensors = {4, 4};
       }),
       with([](KeySpec& k) {
         k.tensors = {2, 6};
       }),
       {"tensor 0 of 4 elements", "tensor 0 of 2 elements"}},
      {{key}, with([](KeySpec& k) { k.type = f64; }), {"type f32", "type f64"}},
      {{key},
       with([](KeySpec& k) { k.options.gradient_type = bf16; }),
       {"gradient_type f32", "gradient_type bf16"}},
      {{key},
       with([](KeySpec& k) { k.options.parameter_type = f16; }),
       {"parameter_type f32", "parameter_type f16"}},
      {{key},
       with([](KeySpec& k) { k.options.compression = Compression::TopK(0.01); }),
       {"compression none", "compression topk of 0.01"}},
      {{key},
       with([](KeySpec& k) { k.options.operation = Operation::kSum; }),
       {"operation mean", "operation sum"}},
      {{key}, with([](KeySpec& k) { k.optimizer = AdamW{}; }), {"sgd", "adamw"}},
      {{key},
       with([](KeySpec& k) { k.optimizer = Sgd{.learning_rate = 0.25}; }),
       {"learning_rate 0.1", "learning_rate 0.25"}},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.values[0]);
    const auto add = [](const std::vector<KeySpec>& specs) {
      return [&specs](Job& job) {
        const auto added = job.AddKeys(specs);
        return added.ok() ? job.Barrier() : added.status();
      };
    };
    for (const std::string& error : Run(add(each.first), add(each.second), {})) {
      ExpectNamesBoth(error, each.values);
    }
  }
}

TEST_F(Disagreements, AboutRoundsShowWhatBothPushed) {
  using Program = std::function<Status(Job&, Key&)>;
  const Program push = [](Job&, Key& key) { return key.PushPull().Wait(kRoundPatience); };
  const Program initialize = [](Job& job, Key& key) {
    return job.Initialize(key, std::vector<float>(8));
  };
  const auto set = [&](double rate) -> Program {
    return [=](Job& job, Key& key) {
      const Status status = key.SetHyperParameters(Sgd{.learning_rate = rate});
      return status.ok() ? push(job, key) : status;
    };
  };
  const auto broadcast = [](std::uint32_t root) -> Program {
    return [=](Job& job, Key& key) {
      return job.Broadcast(key, root, std::vector<float>(8)).Wait(kRoundPatience);
    };
  };
  const Program skip = [](Job&, Key& key) { return key.PushPullToSkip().Wait(kRoundPatience); };
  struct Case {
    Program first, second;
    std::vector<std::string> values;
    JobOptions options = {};
  };
  const Case cases[] = {
      {push, initialize, {"pushed a gradient", "pushed Initialize or Broadcast with root 0"}},
      {broadcast(0), broadcast(1), {"with root 0", "with root 1"}},
      {set(0.5), set(0.25), {"learning_rate=0.5", "learning_rate=0.25"}},
      {set(0.5), push, {"learning_rate=0.5", "learning_rate=0.1"}},
      {set(0.1), push, {}},                            // sets what is set
      {push, skip, {}, {.apply = Apply::kIteration}},  // a request by one rank is enough
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(&each - cases);
    const auto run = [](const Program& program) {
      return [&program](Job& job) {
        auto key = job.AddKey("w", f32, 8, Sgd{.learning_rate = 0.1});
        return key.ok() ? program(job, *key) : key.status();
      };
    };
    for (const std::string& error : Run(run(each.first), run(each.second), each.options)) {
      if (each.values.empty()) {
        EXPECT_EQ(error, "OK");
      } else {
        ExpectNamesBoth(error, each.values);
        EXPECT_THAT(error, HasSubstr("; key w"));
      }
    }
  }
}

TEST(DisagreementsOfRacks, AboutHyperParametersShowBothValues) {
  RackProcess racks(2, {"--cores", "1", "--pin", "off", "--liveness-timeout", "10m"},
                    RackProcess::Kind::kManyRacks);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  const auto run = [&](std::uint32_t rank, double rate) {
    return std::async(std::launch::async, [&racks, rank, rate] {
      const auto train = [&]() -> Status {
        auto session = Connect(racks.endpoint(rank));
        if (!session.ok()) return session.status();
        auto job = session->Join({.job = "digits", .rank = rank, .world_size = 2, .plan = "ring"});
        if (!job.ok()) return job.status();
        auto key = job->AddKey("w", f32, 8, Sgd{.learning_rate = 0.125});
        if (!key.ok()) return key.status();
        const Status first = key->PushPull().Wait(kRoundPatience);
        if (!first.ok()) return first;
        const Status set = key->SetHyperParameters(Sgd{.learning_rate = rate});
        return set.ok() ? key->PushPull().Wait(kRoundPatience) : set;
      };
      return ToString(train());
    });
  };
  std::future<std::string> of_first = run(0, 0.5);
  std::future<std::string> of_second = run(1, 0.25);
  for (const std::string& error : {of_first.get(), of_second.get()}) {
    EXPECT_THAT(error, HasSubstr(fmt::format("rank 0 in rack 0 ({}) pushed a gradient with "
                                             "learning_rate=0.5",
                                             racks.endpoint(0))));
    EXPECT_THAT(error, HasSubstr(fmt::format("rank 1 in rack 1 ({}) pushed a gradient with "
                                             "learning_rate=0.25",
                                             racks.endpoint(1))));
  }
}

}  // namespace
}  // namespace phub::process
