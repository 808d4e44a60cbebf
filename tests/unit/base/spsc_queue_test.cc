#include "common/base/spsc_queue.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <thread>

namespace phub {
namespace {

TEST(SpscQueue, CapacityIsRoundedUpToAPowerOfTwo) {
  EXPECT_EQ(SpscQueue<int>(1).capacity(), 1u);
  EXPECT_EQ(SpscQueue<int>(2).capacity(), 2u);
  EXPECT_EQ(SpscQueue<int>(5).capacity(), 8u);
  EXPECT_EQ(SpscQueue<int>(1024).capacity(), 1024u);
}

TEST(SpscQueue, TakesAsManyItemsAsItsCapacityAndGivesThemInOrder) {
  SpscQueue<int> queue(4);
  // Three times around, so that the indices wrap.
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE(queue.Empty());
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(queue.TryPush(10 * round + i));
    EXPECT_FALSE(queue.TryPush(99));
    EXPECT_FALSE(queue.Empty());
    for (int i = 0; i < 4; ++i) {
      int item = -1;
      EXPECT_TRUE(queue.TryPop(item));
      EXPECT_EQ(item, 10 * round + i);
    }
    int item = -1;
    EXPECT_FALSE(queue.TryPop(item));
    EXPECT_EQ(item, -1);
  }
}

TEST(SpscQueue, AnItemRefusedIsUntouched) {
  SpscQueue<std::unique_ptr<int>> queue(1);
  ASSERT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(*second, 2);
}

// The data behind the indices is handed over intact: no item is lost, duplicated, torn or early.
TEST(SpscQueue, TwoThreadsKeepTheOrderOfAMillionItems) {
  struct Item {
    std::uint64_t sequence = 0;
    std::uint64_t check = 0;
  };
  constexpr std::uint64_t kItems = 1'000'000;
  constexpr std::uint64_t kKey = 0x9e3779b97f4a7c15;
  SpscQueue<Item> queue(64);
  std::thread producer([&queue] {
    for (std::uint64_t i = 0; i < kItems;) {
      if (queue.TryPush(Item{i, i * kKey})) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  std::uint64_t wrong_count = 0;
  for (std::uint64_t i = 0; i < kItems;) {
    Item item;
    if (!queue.TryPop(item)) {
      std::this_thread::yield();
      continue;
    }
    if (item.sequence != i || item.check != i * kKey) ++wrong_count;
    ++i;
  }
  producer.join();
  EXPECT_EQ(wrong_count, 0u);
  EXPECT_TRUE(queue.Empty());
}

}  // namespace
}  // namespace phub
