#include "server/core_thread.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "common/base/cpu_topology.h"
#include "common/transport/tcp/tcp_transport.h"
#include "server/core/job_shard.h"
#include "tests/support/wakeups.h"

namespace phub::server {
namespace {

using Waiting = CorePlan::Waiting;
constexpr DurationNs kPatience = 60 * kSecond;  // much longer than any step takes

bool IsRinging(const Doorbell& bell, DurationNs patience) {
  pollfd descriptor{bell.descriptor(), POLLIN, 0};
  return poll(&descriptor, 1, static_cast<int>(patience / kMillisecond)) == 1;
}

DurationNs ProcessCpuTime() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return used.tv_sec * kSecond + used.tv_nsec;
}

struct Fixture {
  explicit Fixture(CoreThread::Options options)
      : thread(loop, transports, clock, control_bell, options) {}

  // Sends a command as control does. Returns true once the loop has acknowledged it.
  bool Send(const Command& command) {
    const std::uint64_t wanted = loop.counters().commands_done.load() + 1;
    EXPECT_TRUE(loop.queues().commands.TryPush(command));
    thread.Wake();
    const bool rung = IsRinging(control_bell, kPatience);
    control_bell.Clear();
    return rung && loop.counters().commands_done.load(std::memory_order_acquire) == wanted;
  }

  SystemClock clock;
  transport::TcpTransport tcp;
  transport::Transport* transports[1] = {&tcp};
  CoreLoop loop{CoreIndex{0}, clock, transports};
  Doorbell control_bell;
  CoreThread thread;
};

class CoreThreadWaiting : public ::testing::TestWithParam<Waiting> {};

// Commands reach a loop in every wait mode, and control is notified of acknowledgements and events.
TEST_P(CoreThreadWaiting, CommandsWakeTheLoopAndAnswersRingControl) {
  const auto shard = MakeJobShard(ShardConfig{.incarnation = Incarnation{1}, .world_size = 2});
  ASSERT_NE(shard, nullptr);
  Fixture fixture({.pin = std::nullopt, .waiting = GetParam()});
  ASSERT_TRUE(fixture.thread.Start().ok());
  const auto blocked = [&] { return fixture.loop.counters().Get(CoreCounter::loop_blocks) > 0; };
  if (GetParam() == Waiting::kPoll) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  } else {
    const TimeNs late = fixture.clock.Now() + kPatience;
    while (!blocked()) ASSERT_LT(fixture.clock.Now(), late);
  }
  EXPECT_TRUE(fixture.Send({.kind = Command::Kind::kAddJob, .shard = shard.get()}));
  EXPECT_TRUE(fixture.Send({.kind = Command::Kind::kEndJob, .shard = shard.get()}));
  Event event;
  const TimeNs deadline = fixture.clock.Now() + kPatience;
  while (!fixture.loop.queues().events.TryPop(event)) ASSERT_LT(fixture.clock.Now(), deadline);
  EXPECT_EQ(event.kind, Event::Kind::kJobEnded);
  EXPECT_EQ(event.shard, shard.get());
  fixture.thread.Stop();
  EXPECT_EQ(blocked(), GetParam() != Waiting::kPoll);
}

INSTANTIATE_TEST_SUITE_P(All, CoreThreadWaiting,
                         ::testing::Values(Waiting::kPoll, Waiting::kPollThenBlock,
                                           Waiting::kBlock),
                         [](const auto& waiting) {
                           std::string name;
                           for (const char* c = ToString(waiting.param); *c != '\0'; ++c)
                             if (*c != '-') name += *c;
                           return name;
                         });

// What a wake-up costs depends on the machine, so wake-ups are counted; the limit on time finds a
// loop that polls.
TEST(CoreThread, AnIdleLoopSeldomWakesUp) {
  for (const Waiting waiting : {Waiting::kBlock, Waiting::kPollThenBlock}) {
    Fixture fixture({.pin = std::nullopt, .waiting = waiting});
    ASSERT_TRUE(fixture.thread.Start().ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const DurationNs time_before = ProcessCpuTime();
    const std::uint64_t wakeups_before = WakeupsOf(getpid());
    std::this_thread::sleep_for(std::chrono::seconds(1));
    EXPECT_LT(WakeupsOf(getpid()) - wakeups_before, 50u) << ToString(waiting);
    EXPECT_LT(ProcessCpuTime() - time_before, kSecond / 4) << ToString(waiting);
  }
}

TEST(CoreThread, ACoreThatCannotBeHadIsAnErrorNotAThread) {
  Fixture fixture({.pin = kCoreOsIndexMax, .waiting = Waiting::kBlock});
  EXPECT_FALSE(fixture.thread.Start().ok());
  EXPECT_EQ(fixture.loop.counters().Get(CoreCounter::loop_runs), 0u);
}

TEST(CoreThread, PinsOnlyItsOwnThread) {
  const auto topology = CpuTopology::Create();
  ASSERT_TRUE(topology.ok());
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  Fixture fixture({.pin = topology->cores().back().os_index, .waiting = Waiting::kBlock});
  ASSERT_TRUE(fixture.thread.Start().ok());
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

}  // namespace
}  // namespace phub::server
