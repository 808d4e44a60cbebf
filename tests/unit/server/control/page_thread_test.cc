#include "server/control/ports/page_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <future>

#include "common/base/mapped_memory.h"
#include "tests/support/backed_pages.h"

namespace phub::server {
namespace {

std::shared_ptr<MappedMemory> Map(std::size_t bytes) {
  return std::make_shared<MappedMemory>(
      MappedMemory::Allocate(bytes, MappedMemory::Backing::kLater));
}

int PagesOf(const MappedMemory& memory) { return BackedPages(memory.data(), memory.bytes()); }
int AllPagesOf(const MappedMemory& memory) {
  return static_cast<int>(memory.bytes() / PageBytes());
}

// Counts state changes, and waits for them.
struct Changes {
  void Count() {
    const std::lock_guard lock(mutex);
    ++count;
    changed.notify_all();
  }
  bool Reach(int wanted) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(60), [&] { return count >= wanted; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
};

TEST(PageThreadTest, TakesAllPagesAndTellsOnce) {
  Changes changes;
  PageThread thread([&] { changes.Count(); });
  const auto large = Map(std::size_t{70} << 20);  // two pieces
  const auto small = Map(3 * PageBytes());
  EXPECT_EQ(PagesOf(*small), 0);
  const PagesFlag flag =
      thread.Take({{.data = large->data(), .bytes = large->bytes(), .owner = large},
                   {.data = small->data(), .bytes = small->bytes(), .owner = small}});
  ASSERT_TRUE(changes.Reach(1));
  EXPECT_EQ(flag->load(), PrefaultState::kTaken);
  EXPECT_EQ(PagesOf(*large), AllPagesOf(*large));
  EXPECT_EQ(PagesOf(*small), 3);
}

TEST(PageThreadTest, SaysWhatTheSystemRefuses) {
  Changes changes;
  PageThread thread([&] { changes.Count(); });
  // An empty file, which has no pages.
  const int file = memfd_create("empty", MFD_CLOEXEC);
  void* const mapped = mmap(nullptr, PageBytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  ASSERT_NE(mapped, MAP_FAILED);
  const std::shared_ptr<const void> owner(mapped, [](void* data) { munmap(data, PageBytes()); });
  const PagesFlag flag = thread.Take(
      {{.data = static_cast<std::byte*>(mapped), .bytes = PageBytes(), .owner = owner}});
  ASSERT_TRUE(changes.Reach(1));
  EXPECT_EQ(flag->load(), PrefaultState::kRefused);
}

TEST(PageThreadTest, LeavesAloneWhatNobodyOwnsAndFreesWhatItIsGiven) {
  Changes changes;
  PageThread thread([&] { changes.Count(); });
  auto memory = Map(4 * PageBytes());
  const UnbackedMemory gone = {.data = memory->data(), .bytes = memory->bytes(), .owner = memory};
  const std::weak_ptr<const void> watched = memory;
  const DoneFlag freed = thread.Free(std::move(memory));
  ASSERT_TRUE(changes.Reach(1));
  EXPECT_TRUE(freed->load());
  EXPECT_TRUE(watched.expired());
  const PagesFlag flag = thread.Take({gone});
  ASSERT_TRUE(changes.Reach(2));
  EXPECT_EQ(flag->load(), PrefaultState::kTaken) << "nobody asks any more";
}

// A large job does not delay a small one.
TEST(PageThreadTest, PiecesTakeTurns) {
  Changes changes;
  PagesFlag large_flag;
  std::vector<PrefaultState> large_states;  // at each change
  PageThread thread([&] {
    if (large_flag != nullptr) large_states.push_back(large_flag->load());
    changes.Count();
  });
  // Blocks the thread until both jobs are queued.
  std::promise<void> both;
  thread.Free(std::shared_ptr<const void>(this, [&](const void*) { both.get_future().wait(); }));
  const auto large = Map(std::size_t{130} << 20);  // three pieces
  const auto small = Map(PageBytes());
  large_flag = thread.Take({{.data = large->data(), .bytes = large->bytes(), .owner = large}});
  thread.Take({{.data = small->data(), .bytes = small->bytes(), .owner = small}});
  both.set_value();
  ASSERT_TRUE(changes.Reach(3));
  EXPECT_THAT(large_states, ::testing::ElementsAre(PrefaultState::kWaiting, PrefaultState::kWaiting,
                                                   PrefaultState::kTaken));
  EXPECT_EQ(PagesOf(*small), 1);
  EXPECT_EQ(PagesOf(*large), AllPagesOf(*large));
}

}  // namespace
}  // namespace phub::server
