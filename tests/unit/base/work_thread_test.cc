#include "common/base/work_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <vector>

namespace phub {
namespace {

using ::testing::ElementsAre;

// Blocks a thread until it is released.
class Hold {
 public:
  explicit Hold(WorkThread& thread) {
    thread.Post([this] {
      there_.set_value();
      go_.get_future().wait();
    });
    there_.get_future().wait();
  }
  void LetGo() { go_.set_value(); }

 private:
  std::promise<void> there_, go_;
};

TEST(WorkThread, WorksInOrderAndFinishesWhatWaits) {
  std::vector<int> done;
  WorkThread thread("test");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(thread.Post([&done, i] { done.push_back(i); }));
  thread.Finish();
  EXPECT_THAT(done, ElementsAre(0, 1, 2));
  EXPECT_FALSE(thread.Post([&done] { done.push_back(3); })) << "it has ended";
  thread.Finish();
  EXPECT_EQ(done.size(), 3u);
}

TEST(WorkThread, RefusesWhatIsTooMuch) {
  WorkThread thread("test", 1);
  Hold hold(thread);
  EXPECT_TRUE(thread.Post([] {}));
  EXPECT_FALSE(thread.Post([] {}));
  hold.LetGo();
  thread.Finish();
}

TEST(WorkThread, WorkMayPostWork) {
  std::promise<void> done;
  WorkThread thread("test");
  thread.Post([&] { thread.Post([&] { done.set_value(); }); });
  done.get_future().wait();
}

TEST(WorkThread, DropsWhatWaitsWhenItIsDestroyed) {
  bool ran = false;
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = held;
  auto thread = std::make_unique<WorkThread>("test");
  Hold hold(*thread);
  thread->Post([&ran, held = std::move(held)] { ran = true; });
  std::thread later([&] {
    // Dropped before the running work has ended.
    while (!watched.expired()) std::this_thread::yield();
    hold.LetGo();
  });
  thread.reset();
  later.join();
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace phub
