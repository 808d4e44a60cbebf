// The regions of memory that one rank and one daemon share, for all their lanes. A SharedAddress
// names a place in one of them. Both ends have such a table, with the same regions at the same
// indices.
//
// One thread at a time adds regions and removes them; the transports' threads read without locks.
// The table keeps a region's memory alive, and connections keep the table alive.
//
// Regions of the whole job are added at the end and removed from there. Those of groups have the
// indices from wire::kGroupRegionsFirst on, and are added and removed in any order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/base/shared_memory.h"
#include "common/transport/region_address.h"
#include "common/wire/shared_memory.h"

namespace phub::transport {

// Not initialized before Add, because most tables have three regions and room for many more.
struct SharedRegion {
  std::byte* data;
  std::size_t bytes;
  bool writable;          // by this end
  bool writable_by_peer;  // only then may the peer send payload from there
};

class SharedRegions {
 public:
  explicit SharedRegions(std::uint32_t regions_max = wire::kSharedRegionsMax);

  // Off the data path. Returns the index, or UINT32_MAX if the table is full. The table keeps the
  // memory alive; memory with the job's parameters is in the tables of many ranks.
  std::uint32_t Add(std::shared_ptr<const SharedMemory> memory, bool writable_by_peer);

  // Removes the last `count` regions and returns their memory. A thread on the data path may still
  // use a region that it found before; it must synchronize with the caller before the memory is
  // unmapped, or Add() uses the index again. REQUIRES: the table has as many.
  std::vector<std::shared_ptr<const SharedMemory>> RemoveLast(std::uint32_t count);

  // Adds a region of a group. False: the index is not one of groups, or is in use.
  bool AddAt(std::uint32_t index, std::shared_ptr<const SharedMemory> memory,
             bool writable_by_peer);
  // Removes it again. The result owns what threads on the data path may still use: drop it, and use
  // the index again, only after each of them has synchronized with the caller. Null: no such
  // region.
  std::shared_ptr<const void> Remove(std::uint32_t index);

  // The functions below are on the data path. Any thread.
  std::uint32_t count() const { return count_.load(std::memory_order_acquire); }  // the job's

  struct Found {
    const SharedRegion* region = nullptr;  // null: no region contains the bytes
    std::uint32_t index = UINT32_MAX;
  };
  // The region that contains [data, data + bytes). The search starts at `hint`, which the caller
  // keeps, and sets it to the result: consecutive chunks are usually in the same region.
  Found Locate(const std::byte* data, std::size_t bytes, std::uint32_t& hint) const;
  // Its index, or UINT32_MAX.
  std::uint32_t Find(const std::byte* data, std::size_t bytes, std::uint32_t& hint) const;
  // The address of [data, data + bytes); 0 if no region contains it.
  SharedAddress AddressOf(const std::byte* data, std::size_t bytes, std::uint32_t& hint) const;
  // Resolve an address that a peer has sent. Null if [address, address + bytes) is not in one
  // region that this use permits. Reading permits regions that the peer can write. Writing permits
  // regions that both ends can write; otherwise a worker could make the daemon overwrite the job's
  // parameters.
  const std::byte* ResolveForReading(SharedAddress address, std::size_t bytes) const;
  std::byte* ResolveForWriting(SharedAddress address, std::size_t bytes) const;

  static SharedAddress Pack(std::uint32_t index, std::size_t offset) {
    return PackRegion(index, offset);
  }

 private:
  static_assert(wire::kSharedRegionBytesMax == std::uint64_t{1} << kRegionOffsetBits);
  static_assert(wire::kSharedRegionsMax < 1u << (64 - kRegionOffsetBits));

  struct GroupRegion {
    SharedRegion region;
    std::shared_ptr<const SharedMemory> memory;
  };
  // Null: the index has no region.
  const SharedRegion* GroupRegionAt(std::uint32_t index) const;
  Found LocateInGroups(const std::byte* data, std::size_t bytes, std::uint32_t& hint) const;
  const SharedRegion* RegionOf(SharedAddress address, std::size_t bytes, std::size_t& offset) const;

  const std::uint32_t regions_max_;
  const std::unique_ptr<SharedRegion[]> regions_;
  std::atomic<std::uint32_t> count_{0};  // increased only after the new region is filled in
  std::vector<std::shared_ptr<const SharedMemory>> memory_;  // used only by Add and RemoveLast

  // [index - kGroupRegionsFirst], read with atomic_ref. Initialized below group_end_ only.
  const std::unique_ptr<const SharedRegion*[]> group_regions_;
  std::atomic<std::uint32_t> group_end_{0};                                   // never decreased
  std::map<std::uint32_t, std::shared_ptr<const GroupRegion>> group_memory_;  // AddAt and Remove
};

}  // namespace phub::transport
