// A tenant's long work next to another job that trains with the default liveness timeout: large
// checkpoints and very many keys. The other job notices nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "phub/client.h"
#include "tests/process/daemon_process.h"
#include "tests/process/process.h"
#include "tests/process/trainer.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

constexpr std::uint64_t kVictimIterations = 40;

// Trains until `stop`, and at least kVictimIterations. Returns what it did wrong.
class Victim {
 public:
  explicit Victim(const std::string& endpoint)
      : endpoint_(endpoint), done_(std::async(std::launch::async, [this] { return Train(); })) {}
  ~Victim() { stop_ = true; }  // a test that failed before Finish() does not train for ever
  std::string Finish() {
    stop_ = true;
    return done_.get();
  }

 private:
  static JobOptions Job(const std::string& name) {
    return {.job = name, .rank = 0, .world_size = 1};
  }
  std::string Train() {
    Result<Trainer> trainer = Trainer::Start(endpoint_, Job("victim"));
    if (!trainer.ok()) return ToString(trainer.status());
    while (!stop_ || trainer->iteration() < kVictimIterations) {
      if (Status status = trainer->Iterate(); !status.ok()) return ToString(status);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const Trained expected = TrainUndisturbed(endpoint_, Job("undisturbed"), trainer->iteration());
    if (!expected.problem.empty()) return expected.problem;
    return trainer->Parameters() == expected.parameters ? "" : "the parameters are wrong";
  }

  const std::string endpoint_;
  std::atomic<bool> stop_{false};
  std::future<std::string> done_;
};

Result<phub::Job> JoinAlone(Session& session, const std::string& name) {
  return session.Join({.job = name, .rank = 0, .world_size = 1});
}

// Under sanitizers every key costs ten times as much.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kManyKeys = 6000;
#else
constexpr int kManyKeys = 60000;
#endif

TEST(LongWork, ManyKeysAreAddedSavedAndLoadedBesideAnotherJob) {
  DaemonProcess daemon;
  const TemporaryFolder folder;
  Victim victim(daemon.endpoint());
  auto session = phub::Connect(daemon.endpoint());
  ASSERT_TRUE(session.ok());
  std::vector<KeySpec> specs;
  for (int i = 0; i < kManyKeys; ++i) {
    specs.push_back({.name = "encoder.layers.norm." + std::to_string(i),
                     .element_count = 1,
                     .optimizer = Momentum{.learning_rate = 0.5, .momentum = 0.9}});
  }
  const std::string checkpoint = folder.path() + "/checkpoint";
  for (const bool load : {false, true}) {
    auto job = JoinAlone(*session, load ? "loads" : "saves");
    ASSERT_TRUE(job.ok()) << ToString(job.status());
    auto keys = job->AddKeys(specs);
    ASSERT_TRUE(keys.ok()) << ToString(keys.status());
    ASSERT_EQ(keys->size(), specs.size());
    if (load) {
      const auto loaded = job->LoadCheckpoint(checkpoint);
      ASSERT_TRUE(loaded.ok()) << ToString(loaded.status());
    } else {
      std::vector<Handle> handles;
      for (int i = 0; i < kManyKeys; ++i) {
        (*keys)[static_cast<std::size_t>(i)].gradients<float>()[0] = static_cast<float>(i % 97);
        handles.push_back((*keys)[static_cast<std::size_t>(i)].PushPull());
      }
      for (Handle& handle : handles) ASSERT_TRUE(handle.Wait().ok());
      const auto saved = job->SaveCheckpoint(checkpoint);
      ASSERT_TRUE(saved.ok()) << ToString(saved.status());
    }
    for (int i = 0; i < kManyKeys; ++i) {
      ASSERT_EQ((*keys)[static_cast<std::size_t>(i)].parameters<float>()[0],
                -0.5f * static_cast<float>(i % 97));
    }
    ASSERT_TRUE(job->Leave().ok());
  }
  EXPECT_EQ(victim.Finish(), "");
}

// A rank of a job with very many keys dies, and a new process takes its place: it adds all keys,
// asks for their versions and reads their parameters. The bits are those of an undisturbed run.
TEST(LongWork, ARankOfAJobWithManyKeysIsRestarted) {
  constexpr std::uint64_t kIterations = 4;
  const TrainerOptions many = {.small_keys = kManyKeys};
  DaemonProcess daemon({"--memory-max", "2GiB"});
  const TemporaryFolder folder;
  const Trained expected = TrainUndisturbed(
      daemon.endpoint(), {.job = "undisturbed", .world_size = 2}, kIterations, many);
  ASSERT_EQ(expected.problem, "");
  const auto start = [&](const std::string& rank, const std::string& pause_ms) {
    return Process::Start(
        PHUB_TEST_TRAINER,
        {"--endpoint", daemon.endpoint(), "--job", "restarted", "--rank", rank, "--world-size", "2",
         "--restart", "--wait-timeout-ms", "300000", "--iterations", std::to_string(kIterations),
         "--small-keys", std::to_string(many.small_keys), "--pause-ms", pause_ms, "--out",
         folder.path() + "/rank-" + rank});
  };
  Process survivor = start("0", "0");
  {
    Process victim = start("1", "1000");
    ASSERT_TRUE(victim.WaitForOutput("iteration 2\n", 200 * kSecond)) << victim.Outputs();
    victim.Signal(SIGKILL);
  }
  Process heir = start("1", "0");
  EXPECT_EQ(heir.Wait(200 * kSecond), Exit::WithCode(0)) << heir.Outputs();
  EXPECT_EQ(survivor.Wait(200 * kSecond), Exit::WithCode(0)) << survivor.Outputs();
  EXPECT_THAT(heir.StandardOutput(), ::testing::HasSubstr("resumed"));
  for (const char* rank : {"0", "1"}) {
    std::ifstream file(folder.path() + "/rank-" + rank, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    ASSERT_EQ(bytes.size(), expected.parameters.size());
    EXPECT_EQ(std::memcmp(bytes.data(), expected.parameters.data(), bytes.size()), 0) << rank;
  }
}

// The values of the keys alone need more than one message.
TEST(LongWork, KeysThatDoNotFitIntoOneMessageAreSavedAndLoaded) {
  constexpr std::size_t kKeys = 65536;
  DaemonProcess daemon({"--memory-max", "2GiB"});
  const TemporaryFolder folder;
  auto session = phub::Connect(daemon.endpoint());
  ASSERT_TRUE(session.ok());
  std::vector<KeySpec> specs;
  for (std::size_t i = 0; i < kKeys; ++i) {
    specs.push_back({.name = "encoder.norm." + std::to_string(i),
                     .element_count = 1,
                     .optimizer = AdamW{.learning_rate = 0.1,
                                        .beta1 = 0.9,
                                        .beta2 = 0.99,
                                        .epsilon = 1e-7,
                                        .weight_decay = 0.01,
                                        .clip_value = 0.5}});
  }
  const std::string checkpoint = folder.path() + "/checkpoint";
  std::vector<float> saved;
  for (const bool load : {false, true}) {
    auto job = JoinAlone(*session, load ? "loads" : "saves");
    ASSERT_TRUE(job.ok()) << ToString(job.status());
    auto keys = job->AddKeys(specs);
    ASSERT_TRUE(keys.ok()) << ToString(keys.status());
    if (load) {
      const auto loaded = job->LoadCheckpoint(checkpoint);
      ASSERT_TRUE(loaded.ok()) << ToString(loaded.status());
      for (std::size_t i = 0; i < kKeys; ++i)
        ASSERT_EQ((*keys)[i].parameters<float>()[0], saved[i]) << i;
    } else {
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < kKeys; ++i) {
        (*keys)[i].gradients<float>()[0] = static_cast<float>(i % 97);
        handles.push_back((*keys)[i].PushPull());
      }
      for (Handle& handle : handles) ASSERT_TRUE(handle.Wait().ok());
      const auto done = job->SaveCheckpoint(checkpoint);
      ASSERT_TRUE(done.ok()) << ToString(done.status());
      for (std::size_t i = 0; i < kKeys; ++i) saved.push_back((*keys)[i].parameters<float>()[0]);
    }
    ASSERT_TRUE(job->Leave().ok());
  }
}

TEST(LongWork, ManyJobsWithLongNamesAreListed) {
  constexpr int kJobs = 70;
  DaemonProcess daemon;
  Victim victim(daemon.endpoint());
  auto session = phub::Connect(daemon.endpoint());
  ASSERT_TRUE(session.ok());
  std::vector<phub::Job> jobs;
  for (int i = 0; i < kJobs; ++i) {
    auto job = JoinAlone(*session, std::string(250, 'n') + std::to_string(i));
    ASSERT_TRUE(job.ok()) << ToString(job.status());
    jobs.push_back(*std::move(job));
  }
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"job", "list"},
                                                    {"job", "list", "-o", "json"},
                                                    {"top", "--once"}}) {
    const Finished listed = daemon.Ask(arguments);
    EXPECT_EQ(listed.exit, Exit::WithCode(0)) << listed.error;
    for (int i = 0; i < kJobs && arguments[0] == "job"; ++i)
      EXPECT_THAT(listed.output, ::testing::HasSubstr("n" + std::to_string(i)));
  }
  EXPECT_EQ(victim.Finish(), "");
}

// Names with control characters (C0, C1, bidirectional) are refused, and do not reach a terminal.
// Quotes in names forge no fields of log lines.
TEST(LongWork, NamesForgeNoLogLinesAndControlNoTerminal) {
  DaemonProcess daemon;
  Victim victim(daemon.endpoint());
  auto session = phub::Connect(daemon.endpoint());
  ASSERT_TRUE(session.ok());
  const std::string quoted = "a\" forged=1 b=\"";
  auto job = JoinAlone(*session, quoted);
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  EXPECT_FALSE(session->Join({.job = quoted, .rank = 5, .world_size = 7}).ok());
  for (const std::string name :
       {"a\nevent=forged", "a\x1b[2J", "a\xc2\x9b\x32J", "a\xe2\x80\xae\x62"}) {
    const auto refused = JoinAlone(*session, name);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << ToString(refused.status());
    const auto key = job->AddKey(name, f32, 10, None{});
    EXPECT_EQ(key.status().code(), StatusCode::kInvalidArgument) << ToString(key.status());
  }
  EXPECT_TRUE(daemon.process().WaitForOutput("a\\\" forged=1", kStartPatience));
  const std::string log = daemon.process().Outputs();
  const std::string list = daemon.Ask({"job", "list"}).output;
  EXPECT_THAT(log, ::testing::Not(::testing::HasSubstr("a\" forged=1")));
  for (const char* part : {"\nevent=forged", "\x1b[", "\xc2\x9b", "\xe2\x80\xae"}) {
    EXPECT_THAT(log, ::testing::Not(::testing::HasSubstr(part)));
    EXPECT_THAT(list, ::testing::Not(::testing::HasSubstr(part)));
  }
  EXPECT_EQ(victim.Finish(), "");
}

TEST(LongWork, ALargeStateIsSavedAndLoadedBesideAnotherJob) {
  const bool is_long = std::getenv("PHUB_TEST_LONG") != nullptr;
  const std::uint64_t elements = std::uint64_t{is_long ? 1024u : 64u} << 20;  // of 4 bytes
  DaemonProcess daemon({"--memory-max", is_long ? "17GiB" : "2GiB"});
  const TemporaryFolder folder;
  Victim victim(daemon.endpoint());
  auto session = phub::Connect(daemon.endpoint());
  ASSERT_TRUE(session.ok());
  const std::string checkpoint = folder.path() + "/checkpoint";
  for (const bool load : {false, true}) {
    auto job = JoinAlone(*session, load ? "loads" : "saves");
    ASSERT_TRUE(job.ok()) << ToString(job.status());
    auto key = job->AddKey("weights", f32, elements, Sgd{.learning_rate = 1.0});
    ASSERT_TRUE(key.ok()) << ToString(key.status());
    if (load) {
      const auto loaded = job->LoadCheckpoint(checkpoint);
      ASSERT_TRUE(loaded.ok()) << ToString(loaded.status());
    } else {
      key->gradients<float>()[elements - 1] = -7.0f;
      ASSERT_TRUE(key->PushPull().Wait().ok());
      const auto saved = job->SaveCheckpoint(checkpoint);
      ASSERT_TRUE(saved.ok()) << ToString(saved.status());
    }
    EXPECT_EQ(key->parameters<float>()[elements - 1], 7.0f);
    ASSERT_TRUE(job->Leave().ok());
  }
  EXPECT_EQ(victim.Finish(), "");
}

}  // namespace
}  // namespace phub::process
