// Tenants and refused callers have a budget of log lines.
#include "server/control/event_log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

class EventLogTest : public ControlTest {
 protected:
  EventLogTest() {
    SetLogSink(
        [](void* self, LogLevel, const std::string& line) {
          static_cast<EventLogTest*>(self)->lines.push_back(line);
        },
        this);
  }
  ~EventLogTest() override { SetLogSink(nullptr, nullptr); }
  std::size_t LinesWith(const std::string& text) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        lines, [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }
  std::vector<std::string> lines;
};

TEST_F(EventLogTest, RepeatedRefusalsDoNotFillTheLog) {
  v1::JoinRequest request = JoinOf(0, 1);
  request.set_protocol_version_min(99);
  request.set_protocol_version_max(99);
  for (int i = 0; i < 5000; ++i) EXPECT_FALSE(Join(request)->ok());
  EXPECT_EQ(LinesWith("event=refused"), 100u);
  EXPECT_EQ(Counter("phub_joins_refused_version_total"), 5000u);
  EXPECT_EQ(Counter("phub_log_lines_suppressed_total"), 4900u);
  // Another reason has its own budget.
  request = JoinOf(7, 1);
  EXPECT_FALSE(Join(request)->ok());
  EXPECT_EQ(LinesWith("event=refused"), 101u);
  Advance(11 * kSecond);
  EXPECT_EQ(LinesWith("event=lines_suppressed reason=joins_refused_version count=4900"), 1u);
}

TEST_F(EventLogTest, OnePeerThatIsRefusedLeavesLinesForOthers) {
  v1::JoinRequest request = JoinOf(0, 1);
  request.set_protocol_version_min(99);
  request.set_protocol_version_max(99);
  const auto refuse = [&](const std::string& peer) {
    control().turns().Begin();
    control().turns().SetPeer(peer);
    EXPECT_FALSE(Join(request)->ok());
  };
  for (int i = 0; i < 500; ++i) refuse("10.0.0.1");
  EXPECT_EQ(LinesWith("event=refused"), 20u);
  refuse("10.0.0.2");
  EXPECT_EQ(LinesWith("event=refused"), 21u);
  Advance(11 * kSecond);
  EXPECT_EQ(LinesWith("event=lines_suppressed reason=joins_refused_version count=480"), 1u);
  EXPECT_EQ(Counter("phub_log_lines_suppressed_total"), 480u);
  // Expect: many peers together have the budget of the reason.
  for (int i = 0; i < 500; ++i) refuse(std::to_string(i));
  EXPECT_LE(LinesWith("event=refused"), 121u);
}

TEST_F(EventLogTest, APeerThatIsRefusedLanesInALoopHasOneLineAndASummary) {
  const auto lines_of = [&](const std::string& peer, int refusals) {
    int taken = 0;
    for (int i = 0; i < refusals; ++i) taken += control().lanes().MayLogRefusalOf(peer) ? 1 : 0;
    return taken;
  };
  EXPECT_EQ(lines_of("10.0.0.1", 500), 1);
  EXPECT_EQ(lines_of("10.0.0.2", 1), 1);
  EXPECT_EQ(Counter("phub_log_lines_suppressed_total"), 499u);
  // Expect: also of a peer that comes no more.
  Advance(11 * kSecond);
  EXPECT_EQ(LinesWith("event=lines_suppressed refused_lanes_of=\"10.0.0.1\" count=499"), 1u);
  EXPECT_EQ(lines_of("10.0.0.1", 10), 1);
  // Expect: peers that change their address share a budget.
  int lines_of_all = 0;
  for (int i = 0; i < 5000; ++i) lines_of_all += lines_of("10.1." + std::to_string(i), 1);
  EXPECT_LE(lines_of_all, 257);
}

TEST_F(EventLogTest, ATenantThatJoinsAndLeavesInALoopDoesNotFillTheLog) {
  for (int i = 0; i < 5000; ++i) {
    Leave(Enter(0, 1));
    Settle();
    if (i % 200 == 0 && Counter("phub_log_lines_suppressed_total") > 100) break;
  }
  EXPECT_GT(Counter("phub_log_lines_suppressed_total"), 100u);
  EXPECT_LE(lines.size(), 21'000u);
  Advance(11 * kSecond);
  EXPECT_EQ(LinesWith("event=lines_suppressed tenant=default count="), 1u);
}

}  // namespace
}  // namespace phub::server
