// A worker or a daemon that lacks descriptors, threads, memory or space: every such call fails in
// turn. The worker gets a status that names what is short, nothing aborts or throws, and the daemon
// goes on.
#include "common/base/shortage.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "common/base/descriptor.h"
#include "phub/client.h"
#include "tests/process/daemon_process.h"
#include "tests/support/failing_calls.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {
namespace {

using test::CallKind;
using test::FailingCalls;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// What an error may name: a limit, or the path that is full.
constexpr const char* kNamesAShortage =
    "open files|RLIMIT_NOFILE|max_user_watches|memory|threads|No space left";

// Everything that a worker does: connects, joins alone, adds keys, trains, saves, leaves.
class OneWorker {
 public:
  explicit OneWorker(TransportChoice transport) : transport_(transport) {}

  Status Run(const std::string& endpoint,
             std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
    Result<Session> session =
        Connect(endpoint, {.connect_timeout = timeout, .call_timeout = timeout});
    if (!session.ok()) return session.status();
    Result<Job> job =
        session->Join({.job = "short", .rank = 0, .world_size = 1, .transport = transport_});
    if (!job.ok()) return job.status();
    std::vector<Key> keys;
    for (int i = 0; i < 2; ++i) {  // in two batches
      Result<Key> key = job->AddKey("w" + std::to_string(i), f32, 1000, Sgd{.learning_rate = 1.0f});
      if (!key.ok()) return key.status();
      std::fill(key->gradients<float>().begin(), key->gradients<float>().end(), -2.0f);
      keys.push_back(*std::move(key));
    }
    for (Key& key : keys) {
      if (Status status = key.PushPull().Wait(); !status.ok()) return status;
      EXPECT_EQ(key.parameters<float>()[999], 2.0f);
    }
    if (Result<std::uint64_t> saved = job->SaveCheckpoint(folder_.path()); !saved.ok()) {
      return saved.status();
    }
    return job->Leave();
  }

 private:
  const TransportChoice transport_;
  const TemporaryFolder folder_;
};

class Shortage : public ::testing::TestWithParam<TransportChoice> {};

TEST_P(Shortage, OfEachCallInTurnIsAStatusThatNamesIt) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  ASSERT_TRUE(OneWorker(GetParam()).Run(daemon.endpoint()).ok());
  std::size_t failures = 0;
  for (const CallKind kind : test::kCallKinds) {
    for (const FailingCalls::Then then : {FailingCalls::Then::kWorks, FailingCalls::Then::kFails}) {
      bool reached = true;
      // If all later calls fail, too, the first numbers matter: they differ in what works before.
      const std::size_t step = then == FailingCalls::Then::kWorks ? 1 : 4;
      for (std::size_t number = 1; reached; number += step) {
        SCOPED_TRACE(std::string(ToString(kind)) + " number " + std::to_string(number));
        OneWorker worker(GetParam());
        Status status;
        {
          const FailingCalls failing(kind, number, then);
          status = worker.Run(daemon.endpoint());
        }
        reached = FailingCalls::failed_count() > 0;
        if (status.ok()) continue;  // the call was not needed, or was repeated
        ++failures;
        EXPECT_TRUE(reached);
        EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << ToString(status);
        EXPECT_THAT(status.message(), ContainsRegex(kNamesAShortage));
      }
    }
  }
  EXPECT_GT(failures, 20u);
  // The daemon has forgotten the workers that failed, and serves others.
  const Status status = OneWorker(GetParam()).Run(daemon.endpoint());
  EXPECT_TRUE(status.ok()) << ToString(status) << daemon.process().Outputs();
}

// The kernel's own limit, which also drops descriptors that a daemon passes, and limits gRPC.
TEST_P(Shortage, OfDescriptorsIsAStatusThatNamesTheLimit) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{std::min<rlim_t>(before.rlim_cur, 128), before.rlim_max};
  for (std::size_t free = 0; free <= 32; ++free) {
    SCOPED_TRACE(std::to_string(free) + " descriptors are free");
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    std::vector<Descriptor> taken;
    while (const int next = open("/dev/null", O_RDONLY | O_CLOEXEC)) {
      if (next < 0) break;
      taken.emplace_back(next);
    }
    taken.resize(taken.size() - std::min(free, taken.size()));
    const Status status = OneWorker(GetParam()).Run(daemon.endpoint());
    taken.clear();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (!status.ok()) {
      EXPECT_NE(status.code(), StatusCode::kInternal) << ToString(status);
      EXPECT_THAT(status.message(), ContainsRegex("open files|RLIMIT_NOFILE"));
    } else {
      EXPECT_GE(free, 8u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Shortage,
                         ::testing::Values(TransportChoice::kSharedMemory, TransportChoice::kTcp),
                         [](const auto& given) {
                           return given.param == TransportChoice::kTcp ? "tcp" : "shm";
                         });

// The undefined-behaviour sanitizer looks at an object's memory through a pipe. In a daemon without
// descriptors it finds no valid object anywhere, so that daemon runs in other builds only.
#ifndef __SANITIZE_ADDRESS__
TEST(DaemonShortage, OfDescriptorsRefusesTheJobAndNotTheService) {
  DaemonProcess daemon;
  ASSERT_NE(daemon.endpoint(), "") << daemon.process().Outputs();
  OneWorker worker(TransportChoice::kSharedMemory);
  ASSERT_TRUE(worker.Run(daemon.endpoint()).ok());
  std::size_t open_files = 0;
  const std::string folder = "/proc/" + std::to_string(daemon.process().pid()) + "/fd";
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(folder))
    ++open_files;
  rlimit before{};
  ASSERT_EQ(prlimit(daemon.process().pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  std::size_t refused = 0;
  for (rlim_t room = 0; room <= 12; room += 2) {
    const rlimit low{open_files + room, before.rlim_max};
    ASSERT_EQ(prlimit(daemon.process().pid(), RLIMIT_NOFILE, &low, nullptr), 0);
    std::future<Status> worked = std::async(std::launch::async, [&] {
      return worker.Run(daemon.endpoint(), std::chrono::milliseconds(300));
    });
    // A job that runs waits for control, for as long as its daemon lacks descriptors.
    worked.wait_for(std::chrono::seconds(5));
    ASSERT_EQ(prlimit(daemon.process().pid(), RLIMIT_NOFILE, &before, nullptr), 0);
    if (!worked.get().ok()) ++refused;
    ASSERT_TRUE(daemon.process().IsRunning()) << daemon.process().Outputs();
  }
  EXPECT_GT(refused, 0u);
  const Status status = worker.Run(daemon.endpoint());
  EXPECT_TRUE(status.ok()) << ToString(status) << daemon.process().Outputs();
}
#endif

TEST(DaemonShortage, OfDescriptorsAtTheStartIsAnErrorThatNamesTheLimit) {
  const Finished finished = RunToEnd(
      "/bin/sh", {"-c", std::string("ulimit -n 40; exec ") + kPhubd + " --listen 127.0.0.1:0"});
  EXPECT_EQ(finished.exit, Exit::WithCode(1)) << finished.error;
  EXPECT_THAT(finished.error, HasSubstr("this process may have 40 open files (RLIMIT_NOFILE)"));
}

}  // namespace
}  // namespace phub::process
