#include "server/control/ports/control_thread.h"

#include <atomic>
#include <future>

#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

class SteppedClock final : public Clock {
 public:
  TimeNs Now() const override { return now; }
  std::atomic<TimeNs> now = kSecond;
};

class ControlThreadTest : public ControlTest {
 protected:
  std::uint64_t Stalls() {
    return thread_.Run([this](Control&) { return Counter("phub_control_stalls_total"); });
  }
  SteppedClock stepped_;
  ControlThread thread_{control(), stepped_};
};

TEST_F(ControlThreadTest, SilenceIsKnownWithoutTheLock) {
  EXPECT_EQ(thread_.SilentFor(), 0);
  std::promise<void> begun;
  std::promise<void> end;
  std::thread busy([&] {
    thread_.Run([&](Control&) {
      begun.set_value();
      end.get_future().wait();
    });
  });
  begun.get_future().wait();
  stepped_.now += 7 * kSecond;
  // Expect: it returns although the lock is held.
  EXPECT_EQ(thread_.SilentFor(), 7 * kSecond);
  end.set_value();
  busy.join();
  EXPECT_EQ(thread_.SilentFor(), 0);
}

TEST_F(ControlThreadTest, LongTurnsAreCountedAsStalls) {
  thread_.Run([&](Control&) { stepped_.now += 2 * kSecond; });
  EXPECT_EQ(Stalls(), 0u);
  thread_.Run([&](Control&) { stepped_.now += 3 * kSecond; });
  EXPECT_EQ(Stalls(), 1u);
}

}  // namespace
}  // namespace phub::server
