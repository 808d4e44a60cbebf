#include "server/control/ports/background_thread.h"

#include <future>

#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

class BackgroundThreadTest : public ControlTest {
 protected:
  // Runs a piece that appends `name`, in the order in which the lock's turns come.
  void Post(const std::string& tenant, const std::string& name) {
    background_.Run(
        tenant, [] {}, [this, name] { order_.push_back(name); });
  }

  SystemClock system_clock_;
  ControlThread thread_{control(), system_clock_};
  BackgroundThread background_{thread_};
  std::vector<std::string> order_;
};

TEST_F(BackgroundThreadTest, TenantsTakeTurns) {
  std::promise<void> begin, done;
  background_.Run(
      "a", [&] { begin.get_future().wait(); }, [] {});
  for (int i = 0; i < 3; ++i) Post("a", "a" + std::to_string(i));
  Post("b", "b0");
  Post("c", "c0");
  Post("b", "b1");
  background_.Run(
      "a", [] {}, [&] { done.set_value(); });
  begin.set_value();
  done.get_future().wait();
  EXPECT_THAT(order_, ::testing::ElementsAre("b0", "c0", "a0", "b1", "a1", "a2"));
}

TEST_F(BackgroundThreadTest, WorkRunsWithoutTheLockAndItsResultUnderIt) {
  std::promise<void> done;
  background_.Run(
      "a", [&] { thread_.Run([](Control&) {}); },  // would deadlock under the lock
      [&] { thread_.Defer([&] { done.set_value(); }); });
  done.get_future().wait();
}

TEST_F(BackgroundThreadTest, NothingRunsAfterStop) {
  background_.Stop();
  Post("a", "a0");
  EXPECT_TRUE(order_.empty());
}

}  // namespace
}  // namespace phub::server
