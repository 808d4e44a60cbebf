// The regions of shared memory that one rank and one daemon have in common, whatever lane: what a
// SharedAddress names. Both ends keep one, with the same regions at the same indices.
//
// Append-only. One cold thread adds (or several, in turn); transports' threads read without locks.
// A region's memory lives as long as the table, the table as long as any connection that holds it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/base/shared_memory.h"
#include "common/transport/region_address.h"
#include "common/wire/shared_memory.h"

namespace phub::transport {

struct SharedRegion {  // nothing is set before Add does: most tables hold three, and have room for
                       // all
  std::byte* data;
  std::size_t bytes;
  bool writable;          // by this end
  bool writable_by_peer;  // only then may the peer send what lies there
};

class SharedRegions {
 public:
  explicit SharedRegions(std::uint32_t regions_max = wire::kSharedRegionsMax);

  // Cold. The index, or UINT32_MAX when the table is full. The memory is kept; the daemon's
  // parameters are in the tables of many ranks.
  std::uint32_t Add(std::shared_ptr<const SharedMemory> memory, bool writable_by_peer);

  // Hot; any thread from here on.
  std::uint32_t count() const { return count_.load(std::memory_order_acquire); }
  const SharedRegion& region(std::uint32_t index) const { return regions_[index]; }  // < count()

  // Which region holds [data, data + bytes) whole: its index, or UINT32_MAX. The search starts at
  // `hint`, the caller's own, which it leaves at what it found: chunks come in the order of keys.
  std::uint32_t Find(const std::byte* data, std::size_t bytes, std::uint32_t& hint) const;
  // 0 if there is none.
  SharedAddress AddressOf(const std::byte* data, std::size_t bytes, std::uint32_t& hint) const;
  // What a peer may name. To be read: only what it can write itself. To be written by this end:
  // only what both can, or a worker could have the daemon write into everybody's parameters.
  // Null if [address, address + bytes) is no such memory.
  const std::byte* ResolveForReading(SharedAddress address, std::size_t bytes) const;
  std::byte* ResolveForWriting(SharedAddress address, std::size_t bytes) const;

  static SharedAddress Pack(std::uint32_t index, std::size_t offset) {
    return PackRegion(index, offset);
  }

 private:
  static_assert(wire::kSharedRegionBytesMax == std::uint64_t{1} << kRegionOffsetBits);
  static_assert(wire::kSharedRegionsMax < 1u << (64 - kRegionOffsetBits));

  const SharedRegion* RegionOf(SharedAddress address, std::size_t bytes, std::size_t& offset) const;

  const std::uint32_t regions_max_;
  const std::unique_ptr<SharedRegion[]> regions_;
  std::atomic<std::uint32_t> count_{0};  // published when the region before it is filled in
  std::vector<std::shared_ptr<const SharedMemory>> memory_;  // the adding thread's
};

}  // namespace phub::transport
