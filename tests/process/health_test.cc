// /healthz and /readyz while a thread stands still with control's lock.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/process/daemon_process.h"
#include "tests/process/held_lock.h"
#include "tests/support/http_client.h"

namespace phub::process {
namespace {

constexpr DurationNs kHttpPatience = 60 * kSecond;

std::uint16_t PortOf(const std::string& url) {
  return static_cast<std::uint16_t>(std::atoi(url.c_str() + url.rfind(':') + 1));
}

TEST(HealthTest, AnswersWhileControlsLockIsHeldAndAViewerOfThePageWaits) {
  DaemonProcess daemon({"--health-listen", "127.0.0.1:0", "--page-listen", "127.0.0.1:0",
                        "--metrics-listen", "127.0.0.1:0"});
  ASSERT_FALSE(daemon.endpoint().empty()) << daemon.process().Outputs();
  const std::uint16_t health = PortOf(daemon.Logged("health"));
  const std::uint16_t page = PortOf(daemon.Logged("page"));
  const std::uint16_t metrics = PortOf(daemon.Logged("metrics"));
  const auto code = [](std::uint16_t port, const std::string& path) {
    return testing::AskHttp(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
                            kHttpPatience)
        .code;
  };
  ASSERT_EQ(code(page, "/status.json"), 200);
  {
    const HeldLock control(daemon.process().pid(), daemon.endpoint());
    ASSERT_TRUE(control.held());
    for (const std::uint16_t port : {health, metrics}) {
      EXPECT_EQ(code(port, "/healthz"), 200);
      EXPECT_EQ(code(port, "/readyz"), 200);
    }
    const Descriptor viewer = testing::ConnectTo(page);
    ASSERT_TRUE(testing::SendText(viewer, "GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    EXPECT_EQ(testing::ReadToEnd(viewer, kSecond), "");
    EXPECT_EQ(code(health, "/readyz"), 200);
  }
  EXPECT_EQ(code(page, "/status.json"), 200);
}

}  // namespace
}  // namespace phub::process
