// Jobs whose control connections break or hang while phubd lives: the front of the control port is
// killed in a loop, and stopped. Training, new keys, barriers, checkpoints and Leave() go on, and
// the bits are those of an undisturbed job.
#include <gtest/gtest.h>
#include <phub/client.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "client/session/control_diagnosis.h"
#include "common/base/log.h"
#include "tests/process/daemon_process.h"
#include "tests/process/front_process.h"
#include "tests/process/steady_training.h"
#include "tests/process/trainer.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

constexpr std::uint32_t kRanks = 3;
constexpr std::uint64_t kIterations = 60;
constexpr int kNewKeys = 5;
// Jobs that add keys and leave.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kCrews = 1;
#else
constexpr int kCrews = 3;
#endif

// Joins the ranks of one job.
class Crew {
 public:
  Crew(const std::string& endpoint, const std::string& name) {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      Result<Session> session = Connect(endpoint);
      EXPECT_TRUE(session.ok()) << ToString(session.status());
      Result<Job> job = session->Join({.job = name, .rank = rank, .world_size = kRanks});
      EXPECT_TRUE(job.ok()) << ToString(job.status());
      jobs_.push_back(*std::move(job));
    }
  }
  Job& operator[](std::uint32_t rank) { return jobs_[rank]; }

 private:
  std::vector<Job> jobs_;
};

// Adds keys one after the other, and uses each once. Counts in `steps` what is done.
Status AddAndUseKeys(Job& job, std::atomic<int>& steps) {
  for (int i = 0; i < kNewKeys; ++i) {
    Result<Key> key = job.AddKey("key" + std::to_string(i), f32, 1000 + i, None{});
    if (!key.ok()) return key.status();
    std::fill(key->gradients<float>().begin(), key->gradients<float>().end(),
              static_cast<float>(i + 1));
    if (Status status = key->PushPull().Wait(); !status.ok()) return status;
    for (const float value : key->parameters<float>()) {
      if (value == static_cast<float>(kRanks * (i + 1))) continue;
      return Status(StatusCode::kInternal, "key" + std::to_string(i) + " has a wrong sum");
    }
    if (Status status = job.Barrier(); !status.ok()) return status;
    ++steps;
  }
  const Status left = job.Leave();
  ++steps;
  return left;
}

// Every ten iterations: saves, trains on, and loads. Counts in `steps` what is done.
Status SaveLoadAndTrain(Trainer& trainer, const std::string& folder, std::atomic<int>& steps) {
  for (std::uint64_t at = 10; at < kIterations; at += 10) {
    if (Status status = trainer.TrainUntil(at); !status.ok()) return status;
    if (trainer.job().rank() == 0) {
      const Result<std::uint64_t> saved = trainer.job().SaveCheckpoint(folder);
      if (!saved.ok()) return saved.status();
      if (*saved != at) return Status(StatusCode::kInternal, "saved another iteration");
    }
    if (Status status = trainer.job().Barrier(); !status.ok()) return status;
    if (Status status = trainer.TrainUntil(at + 7); !status.ok()) return status;
    const Result<std::uint64_t> loaded = trainer.job().LoadCheckpoint(folder);
    if (!loaded.ok()) return loaded.status();
    if (*loaded != at) return Status(StatusCode::kInternal, "loaded another iteration");
    ++steps;
  }
  return trainer.TrainUntil(kIterations);
}

class OutageTest : public ::testing::Test {
 protected:
  pid_t Front() { return FrontOf(daemon_.process().pid()); }
  bool FrontServes() {
    constexpr DurationNs kTimeout = 200 * kMillisecond;
    const SystemClock clock;
    return client::DiagnoseControlPort(daemon_.endpoint(), {},
                                       {clock, clock.Now() + kTimeout, kTimeout})
        .status.ok();
  }
  // Runs both jobs while `disturb` is called in a loop.
  void Work(const std::function<void()>& disturb) {
    ASSERT_FALSE(daemon_.endpoint().empty()) << daemon_.process().Outputs();
    const Trained calm =
        TrainUndisturbed(daemon_.endpoint(), {.job = "calm", .world_size = kRanks}, kIterations);
    ASSERT_EQ(calm.problem, "");
    std::vector<Crew> crews;
    for (int i = 0; i < kCrews; ++i)
      crews.emplace_back(daemon_.endpoint(), "keys" + std::to_string(i));
    std::vector<std::optional<Trainer>> trainers(kRanks);
    InParallel([&](std::uint32_t rank) {
      auto trainer =
          Trainer::Start(daemon_.endpoint(), {.job = "digits", .rank = rank, .world_size = kRanks});
      if (!trainer.ok()) return trainer.status();
      trainers[rank].emplace(*std::move(trainer));
      return Status();
    });
    ASSERT_FALSE(HasFailure());
    std::thread trouble([&] {
      while (!done_) disturb();
    });
    InParallel([&](std::uint32_t rank) {
      for (Crew& crew : crews)
        if (Status status = AddAndUseKeys(crew[rank], steps_); !status.ok()) return status;
      if (Status status = SaveLoadAndTrain(*trainers[rank], folder_.path(), steps_); !status.ok())
        return status;
      EXPECT_EQ(trainers[rank]->Parameters(), calm.parameters) << "rank " << rank;
      const Status left = trainers[rank]->job().Leave();
      ++steps_;
      return left;
    });
    done_ = true;
    trouble.join();
    // Expect: the parameters are still there after every rank has left.
    for (const std::optional<Trainer>& trainer : trainers)
      EXPECT_EQ(trainer->Parameters(), calm.parameters);
    EXPECT_TRUE(daemon_.process().IsRunning()) << daemon_.process().Outputs();
  }
  static void InParallel(const std::function<Status(std::uint32_t rank)>& work) {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&work, rank] {
        const Status status = work(rank);
        EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << ToString(status);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::atomic<int> steps_{0};  // steps that the ranks have finished, counted together
  std::atomic<bool> done_{false};
  TemporaryFolder folder_;
  DaemonProcess daemon_;  // with the default liveness_timeout
};

TEST_F(OutageTest, TheFrontIsKilledInALoop) {
  int kills = 0;
  Work([&] {
    // Otherwise a front that starts slowly would never answer a call.
    if (!FrontServes()) return Sleep(kMillisecond);
    const pid_t front = Front();
    if (front == 0) return;
    // Time to answer some calls, not always enough for a whole one.
    Sleep((5 + 17 * (kills % 11)) * kMillisecond);
    // On a busy machine that is never enough. Each fourth front lives until the jobs go on.
    const int steps = steps_;
    while (kills % 4 == 3 && steps_ == steps && !done_) Sleep(10 * kMillisecond);
    kill(front, SIGKILL);
    ++kills;
    while (Front() == front) Sleep(kMillisecond);
  });
  EXPECT_GT(kills, 2);  // depends on how long the jobs take
  RecordProperty("kills", kills);
}

TEST_F(OutageTest, TheFrontIsStoppedForSeconds) {
  int stops = 0;
  Work([&] {
    const pid_t front = Front();
    if (front == 0) return Sleep(kMillisecond);
    kill(front, SIGSTOP);
    ++stops;
    Sleep(3 * kSecond);
    const int steps = steps_;
    kill(front, SIGCONT);
    Sleep(200 * kMillisecond);
    // On a busy machine that is never enough. After every second stop it runs until the jobs go on.
    while (stops % 2 == 0 && steps_ == steps && !done_) Sleep(10 * kMillisecond);
  });
  EXPECT_GT(stops, 0);
}

// It hangs for ever, so phubd replaces it after 10 s. A job trains on meanwhile. In the long form
// every front hangs, for a minute.
TEST_F(OutageTest, AFrontThatHangsIsReplaced) {
  ASSERT_FALSE(daemon_.endpoint().empty()) << daemon_.process().Outputs();
  SteadyTraining training({daemon_.endpoint()}, {.job = "digits", .world_size = kRanks},
                          50 * kMillisecond);
  ASSERT_TRUE(training.WaitFor(1));
  const pid_t front = Front();
  ASSERT_GT(front, 0);
  ASSERT_EQ(kill(front, SIGSTOP), 0);
  const std::uint64_t trained = training.iteration();
  EXPECT_TRUE(training.WaitFor(trained + 10));
  EXPECT_TRUE(daemon_.process().WaitForOutput("event=front_lost", kStartPatience));
  const SystemClock clock;
  const DurationNs outage = std::getenv("PHUB_TEST_LONG") != nullptr ? 60 * kSecond : 0;
  for (const TimeNs end = clock.Now() + outage; clock.Now() < end; Sleep(kMillisecond)) {
    if (const pid_t next = Front(); next > 0) kill(next, SIGSTOP);
  }
  EXPECT_TRUE(outage == 0 || training.GoesOnFor(outage / 10));
  if (const pid_t last = Front(); last > 0) kill(last, SIGCONT);
  const TimeNs deadline = clock.Now() + kStartPatience;
  while (!FrontServes() && clock.Now() < deadline) Sleep(10 * kMillisecond);
  EXPECT_TRUE(FrontServes()) << daemon_.process().Outputs();
  EXPECT_NE(Front(), front);
  EXPECT_EQ(training.Finish(), "");
}

TEST_F(OutageTest, ASaveThatWaitsForTheFrontSaysSo) {
  ASSERT_FALSE(daemon_.endpoint().empty()) << daemon_.process().Outputs();
  Result<Session> session = Connect(daemon_.endpoint());
  ASSERT_TRUE(session.ok()) << ToString(session.status());
  Result<Job> job = session->Join({.job = "saving", .rank = 0, .world_size = 1});
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  Result<Key> key = job->AddKey("key", f32, 1000, None{});
  ASSERT_TRUE(key.ok()) << ToString(key.status());
  ASSERT_TRUE(key->PushPull().Wait().ok());
  std::atomic<bool> waits = false;
  SetLogSink(
      [](void* context, LogLevel, const std::string& line) {
        if (line.find("event=call_waits job=saving rank=0 call=SaveCheckpoint") != line.npos)
          *static_cast<std::atomic<bool>*>(context) = true;
      },
      &waits);
  // Each new front is killed, so no call reaches phubd until the save has said that it waits.
  std::thread killer([&] {
    const SystemClock clock;
    const TimeNs deadline = clock.Now() + kStartPatience;
    while (!waits && clock.Now() < deadline) {
      if (const pid_t front = Front(); front != 0) kill(front, SIGKILL);
      Sleep(kMillisecond);
    }
  });
  const Result<std::uint64_t> saved = job->SaveCheckpoint(folder_.path());
  killer.join();
  SetLogSink(nullptr, nullptr);
  EXPECT_TRUE(waits);
  ASSERT_TRUE(saved.ok()) << ToString(saved.status());
  EXPECT_EQ(*saved, 1u);
  EXPECT_TRUE(job->Leave().ok());
}

}  // namespace
}  // namespace phub::process
