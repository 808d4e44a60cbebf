#include "common/transport/shm/shared_regions.h"

#include "tests/unit/transport/shm/shm_fixture.h"

namespace phub::transport {
namespace {

TEST(SharedRegions, NameTheSameMemoryAtBothEnds) {
  const RankMemory rank;
  std::uint32_t hint = 0;
  const std::byte* const here = rank.worker.workers->data() + 300;
  const SharedAddress address = rank.workers->AddressOf(here, 100, hint);
  ASSERT_NE(address, SharedAddress{});
  EXPECT_EQ(rank.workers->ResolveForReading(address, 100), here);
  EXPECT_EQ(rank.daemons->ResolveForReading(address, 100), rank.worker.daemons->data() + 300);
  EXPECT_EQ(rank.daemons->ResolveForWriting(address, 100), rank.worker.daemons->data() + 300);
}

TEST(SharedRegions, WhatAPeerNamesIsWhatItMayWrite) {
  const RankMemory rank;
  std::uint32_t hint = 0;
  const SharedAddress parameters =
      rank.workers->AddressOf(rank.parameters.workers->data(), 64, hint);
  ASSERT_NE(parameters, SharedAddress{});
  // The worker names the job's parameters to the daemon, as payload or as the place for a reply.
  EXPECT_EQ(rank.daemons->ResolveForReading(parameters, 64), nullptr);
  EXPECT_EQ(rank.daemons->ResolveForWriting(parameters, 64), nullptr);
  // The daemon names them to the worker, which may only read.
  EXPECT_EQ(rank.workers->ResolveForReading(parameters, 64), rank.parameters.workers->data());
  EXPECT_EQ(rank.workers->ResolveForWriting(parameters, 64), nullptr);
}

TEST(SharedRegions, RangesThatAreNotWholeInARegionAreNotFound) {
  const RankMemory rank;
  std::uint32_t hint = 0;
  std::byte* const data = rank.worker.daemons->data();
  EXPECT_NE(rank.daemons->AddressOf(data, kRegionBytes, hint), SharedAddress{});
  EXPECT_EQ(rank.daemons->AddressOf(data, kRegionBytes + 1, hint), SharedAddress{});
  EXPECT_EQ(rank.daemons->AddressOf(data + 1, kRegionBytes, hint), SharedAddress{});
  EXPECT_EQ(rank.daemons->AddressOf(data, SIZE_MAX, hint), SharedAddress{});
  EXPECT_EQ(rank.daemons->AddressOf(data + kRegionBytes - 1, SIZE_MAX, hint), SharedAddress{});
  const std::byte elsewhere{};
  EXPECT_EQ(rank.daemons->AddressOf(&elsewhere, 1, hint), SharedAddress{});
  const SharedAddress last = SharedRegions::Pack(0, kRegionBytes - 8);
  EXPECT_NE(rank.daemons->ResolveForReading(last, 8), nullptr);
  EXPECT_EQ(rank.daemons->ResolveForReading(last, 9), nullptr);
  EXPECT_EQ(rank.daemons->ResolveForReading(last, SIZE_MAX), nullptr);
  for (const SharedAddress wrong :
       {SharedAddress{0}, SharedAddress{1}, SharedAddress::Max(), SharedRegions::Pack(2, 0),
        SharedRegions::Pack(0, kRegionBytes), SharedRegions::Pack(4095, 0)}) {
    EXPECT_EQ(rank.daemons->ResolveForReading(wrong, 1), nullptr) << wrong.value;
    EXPECT_EQ(rank.daemons->ResolveForWriting(wrong, 1), nullptr) << wrong.value;
  }
}

TEST(SharedRegions, AreFoundWhereverTheSearchStarts) {
  SharedRegions regions;
  std::vector<Memory> memory;
  for (int i = 0; i < 40; ++i) {
    memory.push_back(MappedTwice(4096, SharedMemory::Others::kWrite).daemons);
    EXPECT_EQ(regions.Add(memory.back(), true), static_cast<std::uint32_t>(i));
  }
  std::uint32_t hint = 1000;
  for (std::uint32_t step = 1; step < 40; step += 6) {
    for (std::uint32_t i = 0; i < 40; ++i) {
      const std::uint32_t index = i * step % 40;
      EXPECT_EQ(regions.Find(memory[index]->data() + 5, 10, hint), index);
      EXPECT_EQ(hint, index);
    }
  }
}

TEST(SharedRegions, TableIsBoundedAndKeepsItsMemory) {
  SharedRegions regions(2);
  std::weak_ptr<const SharedMemory> watched;
  {
    const Memory memory = MappedTwice(4096, SharedMemory::Others::kWrite).daemons;
    watched = memory;
    EXPECT_EQ(regions.Add(memory, true), 0u);
    EXPECT_EQ(regions.Add(memory, true), 1u);
    EXPECT_EQ(regions.Add(memory, true), UINT32_MAX);
  }
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(regions.count(), 2u);
}

}  // namespace
}  // namespace phub::transport
