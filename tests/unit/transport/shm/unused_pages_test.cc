// The capacity of a lane and of a rank's table takes no memory before it is used. A daemon has
// thousands of lanes, and most never have many messages in flight.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/transport/message_pool.h"
#include "common/transport/shm/ring_sender.h"
#include "common/transport/shm/shared_regions.h"
#include "common/wire/message.h"
#include "common/wire/shared_memory.h"
#include "tests/support/resident_bytes.h"

namespace phub::transport {
namespace {

// More than an allocator could have in memory already.
constexpr std::size_t kRoomBytes = 256 << 20;
// In addition to the pool's stack of indices, and a sanitizer's writes to every allocation.
constexpr std::size_t kUsedBytesMax = kRoomBytes / 3;
constexpr std::uint32_t kRingRecords = 4;

class UnusedPages : public ::testing::Test {
 protected:
  std::uint64_t TakenBytes() const {
    return std::max(ResidentBytesOf(getpid()), before_bytes_) - before_bytes_;
  }

 private:
  const std::uint64_t before_bytes_ = ResidentBytesOf(getpid());
};

TEST_F(UnusedPages, OfAPoolThatLentFewMessages) {
  MessagePool pool(kRoomBytes / sizeof(ReceivedMessage));
  for (int i = 0; i < 1000; ++i) {
    std::array<ReceivedMessage*, 3> lent{};
    for (ReceivedMessage*& message : lent) message = &pool.Lend();
    for (const ReceivedMessage* message : lent) pool.Release(message);
  }
  EXPECT_EQ(pool.lent_count(), 0u);
  EXPECT_LT(TakenBytes(), kUsedBytesMax);
}

TEST_F(UnusedPages, OfAQueueThatHeldFewRequests) {
  // As many as fit, one at a time.
  constexpr std::uint32_t kCapacity = kRoomBytes / sizeof(RingRecord);
  RingIndices indices{};
  std::vector<RingRecord> records(kRingRecords);
  RingSender sender({.indices = &indices, .records = records.data(), .record_count = kRingRecords},
                    kCapacity);
  const std::array<std::byte, wire::kHeaderBytes> header{};
  for (std::uint32_t i = 0; i < kCapacity; ++i) {
    ASSERT_FALSE(sender.full());
    sender.Push(header, {}, {}, i, true);
    std::size_t budget = 1;
    ASSERT_TRUE(sender.Flush(budget));
    indices.read = indices.written;
    std::uint64_t cookie = 0;
    ASSERT_TRUE(sender.NextSent(cookie));
    ASSERT_EQ(cookie, i);
    ASSERT_FALSE(sender.NextSent(cookie));
  }
  EXPECT_LT(TakenBytes(), kUsedBytesMax);
}

TEST_F(UnusedPages, OfTablesOfNoRegions) {
  std::vector<std::unique_ptr<SharedRegions>> tables(
      kRoomBytes / (wire::kSharedRegionsMax * sizeof(SharedRegion)));
  for (auto& table : tables) table = std::make_unique<SharedRegions>();
  EXPECT_LT(TakenBytes(), kUsedBytesMax);
}

}  // namespace
}  // namespace phub::transport
