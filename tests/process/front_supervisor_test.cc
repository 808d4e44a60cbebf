// phubd's supervisor with a real front, which hangs or needs too much memory.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "server/front/supervisor.h"
#include "tests/process/daemon_process.h"
#include "tests/process/front_process.h"
#include "tests/process/raw_http2.h"

namespace phub::process {
namespace {

// Counts what the supervisor reports.
class CountingHost final : public server::FrontSupervisor::Host {
 public:
  server::FrontVerdict Judge(const server::FrontCall& call, Descriptor&) override {
    return {.connection = call.connection, .code = 16, .message = "nobody is known here"};
  }
  void OnGone(std::uint64_t) override {}
  void OnAllGone() override {}
  void OnCounts(const server::FrontCounts& counts) override {
    Change([&] { restarts_ += counts.restarts; });
  }
  bool OnOutage(TimeNs since) override {
    Change([&] {
      if (since == 0) ++returns_;
    });
    return true;
  }
  bool Alive() override { return true; }
  // False: it did not happen in time.
  bool WaitFor(std::uint64_t restarts, std::uint64_t returns) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(kStartPatience),
                             [&] { return restarts_ >= restarts && returns_ >= returns; });
  }

 private:
  void Change(const std::function<void()>& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t restarts_ = 0;
  std::uint64_t returns_ = 0;  // a front serves again
};

class FrontSupervisorTest : public ::testing::Test {
 protected:
  FrontSupervisorTest() {
    signal(SIGPIPE, SIG_IGN);
    SetLogSink(
        [](void* context, LogLevel, const std::string& line) {
          auto& self = *static_cast<FrontSupervisorTest*>(context);
          const std::lock_guard lock(self.mutex_);
          self.log_ += line + "\n";
        },
        this);
  }
  ~FrontSupervisorTest() override {
    supervisor_.reset();
    SetLogSink(nullptr, nullptr);
  }
  void Start(const server::FrontSupervisor::Options& options) {
    Descriptor listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    ASSERT_EQ(bind(listening.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    ASSERT_EQ(listen(listening.get(), SOMAXCONN), 0);
    ASSERT_EQ(getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    address_ = address;
    std::vector<Descriptor> sockets;
    sockets.push_back(std::move(listening));
    auto started = server::FrontSupervisor::Start(std::move(sockets), options, host_);
    ASSERT_TRUE(started.ok()) << started.status();
    supervisor_ = *std::move(started);
  }
  static pid_t Front() { return FrontOf(getpid()); }
  std::string Log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

  std::mutex mutex_;
  std::string log_;  // under mutex_
  CountingHost host_;
  sockaddr_in address_{};
  std::unique_ptr<server::FrontSupervisor> supervisor_;
};

TEST_F(FrontSupervisorTest, AFrontThatHangsIsReplaced) {
  Start({.program = PHUB_TEST_PHUBD, .silence_max = 4 * kSecond});
  const pid_t front = Front();
  ASSERT_GT(front, 0);
  ASSERT_EQ(kill(front, SIGSTOP), 0);
  EXPECT_TRUE(host_.WaitFor(/*restarts=*/1, /*returns=*/1)) << Log();
  EXPECT_NE(Front(), front);
  EXPECT_THAT(Log(), ::testing::ContainsRegex("event=front_lost .*reason=\"it hangs\""));
}

// Sanitizers keep freed memory.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(FrontSupervisorTest, AFrontThatNeedsTooMuchMemoryIsReplaced) {
  // Each of these connections begins a call and costs more than 4 KiB.
  constexpr int kConnections = 250;
  constexpr std::uint64_t kGrowth = kConnections * (4 << 10);
  Start({.program = PHUB_TEST_PHUBD});
  const std::uint64_t idle = StatusField(Front(), "RssAnon:") * 1024;
  supervisor_.reset();
  Start({.program = PHUB_TEST_PHUBD, .bytes_max = idle + kGrowth});
  const pid_t front = Front();
  const std::string hello =
      std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") +
      RawHttp2::Frame(RawHttp2::kSettings, 0, 0, "") +
      RawHttp2::Frame(RawHttp2::kHeaders, 0, 1, RawHttp2::CallHeaders("/phub.v1.Session/Join"));
  std::vector<Descriptor> connections;
  for (int i = 0; i < kConnections; ++i) {
    connections.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(
        connect(connections.back().get(), reinterpret_cast<sockaddr*>(&address_), sizeof address_),
        0);
    (void)send(connections.back().get(), hello.data(), hello.size(), MSG_NOSIGNAL);
  }
  EXPECT_TRUE(host_.WaitFor(/*restarts=*/1, /*returns=*/0)) << Log();
  EXPECT_NE(Front(), front);
  EXPECT_THAT(Log(), ::testing::ContainsRegex("event=front_lost .*reason=\"it uses [0-9]+ MiB"));
}
#endif

}  // namespace
}  // namespace phub::process
