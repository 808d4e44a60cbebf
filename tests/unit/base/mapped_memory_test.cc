#include "common/base/mapped_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/huge_pages.h"
#include "tests/support/backed_pages.h"

namespace phub {
namespace {

using Backing = MappedMemory::Backing;
constexpr std::size_t kMappedBytes = std::size_t{8} << 20;

TEST(MappedMemory, IsZeroFilledAndPageAligned) {
  for (const Backing backing : {Backing::kOnTouch, Backing::kPrefault}) {
    const MappedMemory memory = MappedMemory::Allocate(kMappedBytes + 1, backing);
    ASSERT_TRUE(memory);
    EXPECT_EQ(memory.bytes(), kMappedBytes + 1);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % PageBytes(), 0u);
    EXPECT_TRUE(std::all_of(memory.data(), memory.data() + memory.bytes(),
                            [](std::byte each) { return each == std::byte{0}; }));
    memory.data()[kMappedBytes] = std::byte{1};
  }
}

TEST(MappedMemory, IsBackedWhenTouchedOrAtOnce) {
  const MappedMemory on_touch = MappedMemory::Allocate(kMappedBytes, Backing::kOnTouch);
  EXPECT_EQ(BackedPages(on_touch.data(), kMappedBytes), 0);
  on_touch.data()[kMappedBytes / 2] = std::byte{1};
  EXPECT_GE(BackedPages(on_touch.data(), kMappedBytes), 1);

  const MappedMemory prefaulted = MappedMemory::Allocate(kMappedBytes, Backing::kPrefault);
  EXPECT_EQ(BackedPages(prefaulted.data(), kMappedBytes),
            static_cast<int>(kMappedBytes / PageBytes()));
}

TEST(MappedMemory, PagesAreTakenLaterWhereverTheRangeBegins) {
  const MappedMemory later = MappedMemory::Allocate(kMappedBytes, Backing::kLater);
  EXPECT_EQ(BackedPages(later.data(), kMappedBytes), 0);
  EXPECT_TRUE(TakePages(later.data() + PageBytes() + 100, PageBytes()));  // parts of two pages
  EXPECT_EQ(BackedPages(later.data() + PageBytes(), 2 * PageBytes()), 2);
  EXPECT_TRUE(TakePages(later.data(), kMappedBytes));
  EXPECT_EQ(BackedPages(later.data(), kMappedBytes), static_cast<int>(kMappedBytes / PageBytes()));
}

TEST(MappedMemory, LargeOnesLieWhereHugePagesFit) {
  for (const std::size_t bytes : {kHugePageBytes, 3 * kHugePageBytes + 100}) {
    for (const Backing backing : {Backing::kOnTouch, Backing::kPrefault}) {
      const MappedMemory first = MappedMemory::Allocate(bytes, backing);
      const MappedMemory second = MappedMemory::Allocate(bytes, backing);
      for (const MappedMemory* memory : {&first, &second}) {
        ASSERT_TRUE(*memory);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % kHugePageBytes, 0u);
        memory->data()[bytes - 1] = std::byte{1};
      }
    }
  }
}

TEST(MappedMemory, NothingAndTooMuchGiveAnEmptyObject) {
  EXPECT_FALSE(MappedMemory());
  EXPECT_FALSE(MappedMemory::Allocate(0, Backing::kPrefault));
  const MappedMemory too_much = MappedMemory::Allocate(std::size_t{1} << 62, Backing::kOnTouch);
  EXPECT_FALSE(too_much);
  EXPECT_EQ(too_much.bytes(), 0u);
}

TEST(MappedMemory, MovesHandOverTheMemory) {
  MappedMemory first = MappedMemory::Allocate(kMappedBytes, Backing::kOnTouch);
  std::byte* const address = first.data();
  address[5] = std::byte{55};
  MappedMemory second = std::move(first);
  EXPECT_EQ(second.data(), address);
  EXPECT_EQ(second.bytes(), kMappedBytes);
  MappedMemory third;
  third = std::move(second);
  EXPECT_EQ(third.data(), address);
  EXPECT_EQ(third.data()[5], std::byte{55});
}

TEST(MappedMemory, IsGivenBackWhenDestroyed) {
  std::byte* address = nullptr;
  {
    const MappedMemory memory = MappedMemory::Allocate(kMappedBytes, Backing::kPrefault);
    address = memory.data();
    ASSERT_GT(BackedPages(address, kMappedBytes), 0);
  }
  EXPECT_EQ(mincore(address, PageBytes(), std::vector<unsigned char>(1).data()), -1);
  EXPECT_EQ(errno, ENOMEM);
}

}  // namespace
}  // namespace phub
