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

TEST(SharedRegions, ThoseOfGroupsComeAndGoInAnyOrder) {
  constexpr std::uint32_t kFirst = wire::kGroupRegionsFirst;
  SharedRegions regions;
  std::vector<Memory> memory;
  for (int i = 0; i < 4; ++i)
    memory.push_back(MappedTwice(4096, SharedMemory::Others::kWrite).daemons);
  EXPECT_EQ(regions.Add(memory[0], true), 0u);
  EXPECT_TRUE(regions.AddAt(kFirst + 5, memory[1], true));  // indices below have no region
  EXPECT_TRUE(regions.AddAt(kFirst + 1, memory[2], false));
  EXPECT_FALSE(regions.AddAt(kFirst + 5, memory[3], true));
  EXPECT_FALSE(regions.AddAt(kFirst - 1, memory[3], true));
  EXPECT_FALSE(regions.AddAt(kFirst + wire::kGroupRegionsMax, memory[3], true));
  EXPECT_FALSE(regions.AddAt(0, memory[3], true));
  EXPECT_EQ(regions.count(), 1u);
  std::uint32_t hint = 0;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(regions.Find(memory[1]->data() + 96, 4000, hint), kFirst + 5);
    EXPECT_EQ(hint, kFirst + 5);
    EXPECT_EQ(regions.Find(memory[1]->data() + 97, 4000, hint), UINT32_MAX);
    EXPECT_EQ(regions.Find(memory[0]->data(), 10, hint), 0u);
    EXPECT_EQ(regions.Find(memory[2]->data(), 10, hint), kFirst + 1);
    EXPECT_EQ(regions.Find(memory[3]->data(), 10, hint), UINT32_MAX);
  }
  EXPECT_EQ(regions.ResolveForWriting(SharedRegions::Pack(kFirst + 5, 7), 8),
            memory[1]->data() + 7);
  EXPECT_EQ(regions.ResolveForReading(SharedRegions::Pack(kFirst + 1, 7), 8), nullptr);
  for (const std::uint32_t none : {0u, 4u, 6u, wire::kGroupRegionsMax, 50'000u})
    EXPECT_EQ(regions.ResolveForReading(SharedRegions::Pack(kFirst + none, 0), 1), nullptr) << none;
  EXPECT_EQ(regions.ResolveForReading(SharedRegions::Pack(kFirst + 5, 4090), 8), nullptr);
  // What is removed is not found, also where the last search ended, and lives until the caller
  // drops it.
  EXPECT_EQ(regions.Find(memory[1]->data(), 1, hint), kFirst + 5);
  std::shared_ptr<const void> removed = regions.Remove(kFirst + 5);
  EXPECT_EQ(regions.Find(memory[1]->data(), 1, hint), UINT32_MAX);
  EXPECT_EQ(regions.ResolveForWriting(SharedRegions::Pack(kFirst + 5, 7), 8), nullptr);
  const std::weak_ptr<const SharedMemory> watched = memory[1];
  memory[1].reset();
  EXPECT_FALSE(watched.expired());
  removed.reset();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(regions.Remove(kFirst + 5), nullptr);
  EXPECT_EQ(regions.Remove(kFirst + wire::kGroupRegionsMax), nullptr);
  EXPECT_TRUE(regions.AddAt(kFirst + 5, memory[3], true));
  EXPECT_EQ(regions.Find(memory[3]->data(), 1, hint), kFirst + 5);
}

}  // namespace
}  // namespace phub::transport
