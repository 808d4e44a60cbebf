// The fronts of all daemons are stopped for long: no call reaches control, neither from workers nor
// from other racks. Jobs of one rack and across racks go on, with the right bits.
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <cstdlib>

#include "tests/process/front_process.h"
#include "tests/process/rack_process.h"
#include "tests/process/steady_training.h"

namespace phub::process {
namespace {

// Keeps the fronts of daemons stopped, also those that phubd starts in place of others that hang.
class StoppedFronts {
 public:
  explicit StoppedFronts(RackProcess& racks) : racks_(racks), fronts_(racks.size(), 0) {}
  ~StoppedFronts() {
    for (const pid_t front : fronts_) {
      if (front > 0) kill(front, SIGCONT);
    }
  }
  StoppedFronts(const StoppedFronts&) = delete;
  StoppedFronts& operator=(const StoppedFronts&) = delete;

  // Returns how many were stopped so far.
  int StopFor(DurationNs duration) {
    const SystemClock clock;
    for (const TimeNs end = clock.Now() + duration; clock.Now() < end; Sleep(20 * kMillisecond)) {
      for (std::size_t i = 0; i < racks_.size(); ++i) {
        const pid_t front = FrontOf(racks_.daemon(i).pid());
        if (front == 0 || front == fronts_[i]) continue;
        fronts_[i] = front;
        kill(front, SIGSTOP);
        ++stopped_;
      }
    }
    return stopped_;
  }

 private:
  RackProcess& racks_;
  std::vector<pid_t> fronts_;  // stopped, by daemon
  int stopped_ = 0;
};

// With the default liveness_timeout, 2 s.
TEST(RacksOutageTest, JobsGoOnWhileAllFrontsAreStopped) {
  const bool is_long = std::getenv("PHUB_TEST_LONG") != nullptr;
  const DurationNs outage = (is_long ? 60 : 8) * kSecond;
  RackProcess racks(2, {"--cores", "1", "--pin", "off"}, RackProcess::Kind::kManyRacks);
  ASSERT_TRUE(racks.serving()) << racks.Outputs();
  JobOptions over{.job = "over", .rank = 0, .world_size = 4};
  over.plan = "ring";
  SteadyTraining across({racks.endpoint(0), racks.endpoint(1)}, over);
  SteadyTraining alone({racks.endpoint(0)}, {.job = "alone", .rank = 0, .world_size = 2});
  ASSERT_TRUE(across.WaitFor(10) && alone.WaitFor(10)) << racks.Outputs();
  {
    StoppedFronts fronts(racks);
    EXPECT_GE(fronts.StopFor(outage * 3 / 4), 2);
    const std::array<std::uint64_t, 2> before = {across.iteration(), alone.iteration()};
    fronts.StopFor(outage / 4);
    EXPECT_GT(across.iteration(), before[0]);
    EXPECT_GT(alone.iteration(), before[1]);
  }
  for (std::size_t i = 0; i < racks.size(); ++i) {
    for (int tries = 0; tries < 300; ++tries) {
      if (racks.Ask(i, {"job", "list"}).exit == Exit::WithCode(0)) break;
      Sleep(100 * kMillisecond);
    }
  }
  EXPECT_EQ(across.Finish(), "");
  EXPECT_EQ(alone.Finish(), "");
}

}  // namespace
}  // namespace phub::process
