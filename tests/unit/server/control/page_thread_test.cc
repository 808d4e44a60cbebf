#include "server/control/page_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <future>

#include "common/base/mapped_memory.h"

namespace phub::server {
namespace {

constexpr std::size_t kPageBytes = 4096;

std::shared_ptr<MappedMemory> Map(std::size_t bytes) {
  return std::make_shared<MappedMemory>(
      MappedMemory::Allocate(bytes, MappedMemory::Backing::kLater));
}

std::size_t PagesOf(const MappedMemory& memory) {
  std::vector<unsigned char> resident(memory.bytes() / kPageBytes);
  EXPECT_EQ(mincore(memory.data(), memory.bytes(), resident.data()), 0);
  return static_cast<std::size_t>(
      std::count_if(resident.begin(), resident.end(), [](unsigned char each) { return each & 1; }));
}

// Counts what it is told, and waits for it.
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
  const auto small = Map(3 * kPageBytes);
  EXPECT_EQ(PagesOf(*small), 0u);
  const PagesFlag flag =
      thread.Take({{.data = large->data(), .bytes = large->bytes(), .owner = large},
                   {.data = small->data(), .bytes = small->bytes(), .owner = small}});
  ASSERT_TRUE(changes.Reach(1));
  EXPECT_EQ(flag->load(), PagesState::kTaken);
  EXPECT_EQ(PagesOf(*large), large->bytes() / kPageBytes);
  EXPECT_EQ(PagesOf(*small), 3u);
}

TEST(PageThreadTest, SaysWhatTheSystemRefuses) {
  Changes changes;
  PageThread thread([&] { changes.Count(); });
  const auto memory = Map(4 * kPageBytes);
  const UnbackedMemory hole = {.data = memory->data(), .bytes = kPageBytes, .owner = memory};
  ASSERT_EQ(munmap(hole.data, kPageBytes), 0);
  const PagesFlag flag = thread.Take({hole});
  ASSERT_TRUE(changes.Reach(1));
  EXPECT_EQ(flag->load(), PagesState::kRefused);
}

TEST(PageThreadTest, LeavesAloneWhatNobodyOwnsAndFreesWhatItIsGiven) {
  Changes changes;
  PageThread thread([&] { changes.Count(); });
  auto memory = Map(4 * kPageBytes);
  const UnbackedMemory gone = {.data = memory->data(), .bytes = memory->bytes(), .owner = memory};
  const std::weak_ptr<const void> watched = memory;
  const DoneFlag freed = thread.Free(std::move(memory));
  ASSERT_TRUE(changes.Reach(1));
  EXPECT_TRUE(freed->load());
  EXPECT_TRUE(watched.expired());
  const PagesFlag flag = thread.Take({gone});
  ASSERT_TRUE(changes.Reach(2));
  EXPECT_EQ(flag->load(), PagesState::kTaken) << "nobody asks any more";
}

// A large job does not keep a small one waiting.
TEST(PageThreadTest, PiecesTakeTurns) {
  Changes changes;
  PagesFlag large_flag;
  std::vector<PagesState> large_states;  // at each change
  PageThread thread([&] {
    if (large_flag != nullptr) large_states.push_back(large_flag->load());
    changes.Count();
  });
  // Keeps the thread until both are there.
  std::promise<void> both;
  thread.Free(std::shared_ptr<const void>(this, [&](const void*) { both.get_future().wait(); }));
  const auto large = Map(std::size_t{130} << 20);  // three pieces
  const auto small = Map(kPageBytes);
  large_flag = thread.Take({{.data = large->data(), .bytes = large->bytes(), .owner = large}});
  thread.Take({{.data = small->data(), .bytes = small->bytes(), .owner = small}});
  both.set_value();
  ASSERT_TRUE(changes.Reach(3));
  EXPECT_THAT(large_states,
              testing::ElementsAre(PagesState::kWaiting, PagesState::kWaiting, PagesState::kTaken));
  EXPECT_EQ(PagesOf(*small), 1u);
  EXPECT_EQ(PagesOf(*large), large->bytes() / kPageBytes);
}

}  // namespace
}  // namespace phub::server
