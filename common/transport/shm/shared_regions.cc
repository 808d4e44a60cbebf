#include "common/transport/shm/shared_regions.h"

#include <cstddef>
#include <functional>
#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace phub::transport {

SharedRegions::SharedRegions(std::uint32_t regions_max)
    : regions_max_(regions_max),
      regions_(std::make_unique_for_overwrite<SharedRegion[]>(regions_max)) {
  PHUB_CHECK(regions_max > 0 && regions_max <= wire::kSharedRegionsMax, "{}", regions_max);
}

std::uint32_t SharedRegions::Add(std::shared_ptr<const SharedMemory> memory,
                                 bool writable_by_peer) {
  PHUB_CHECK(memory != nullptr && *memory && memory->bytes() <= wire::kSharedRegionBytesMax);
  const std::uint32_t index = count_.load(std::memory_order_relaxed);
  if (index == regions_max_) return UINT32_MAX;
  regions_[index] = {memory->data(), memory->bytes(), memory->writable(), writable_by_peer};
  memory_.push_back(std::move(memory));
  count_.store(index + 1, std::memory_order_release);
  return index;
}

std::vector<std::shared_ptr<const SharedMemory>> SharedRegions::RemoveLast(std::uint32_t count) {
  const std::uint32_t before = count_.load(std::memory_order_relaxed);
  PHUB_CHECK(count <= before, "regions={} removed={}", before, count);
  count_.store(before - count, std::memory_order_release);
  const auto first = memory_.end() - static_cast<std::ptrdiff_t>(count);
  std::vector<std::shared_ptr<const SharedMemory>> removed(std::make_move_iterator(first),
                                                           std::make_move_iterator(memory_.end()));
  memory_.erase(first, memory_.end());
  return removed;
}

std::uint32_t SharedRegions::Find(const std::byte* data, std::size_t bytes,
                                  std::uint32_t& hint) const {
  const std::uint32_t regions = count();
  const std::less<const std::byte*> before;
  std::uint32_t index = hint < regions ? hint : 0;
  for (std::uint32_t i = 0; i < regions; ++i) {
    const SharedRegion& each = regions_[index];
    if (!before(data, each.data) && before(data, each.data + each.bytes)) {
      // Regions do not overlap, so no other region can contain the bytes.
      if (bytes > each.bytes - static_cast<std::size_t>(data - each.data)) return UINT32_MAX;
      hint = index;
      return index;
    }
    if (++index == regions) index = 0;
  }
  return UINT32_MAX;
}

SharedAddress SharedRegions::AddressOf(const std::byte* data, std::size_t bytes,
                                       std::uint32_t& hint) const {
  const std::uint32_t index = Find(data, bytes, hint);
  if (index == UINT32_MAX) return {};
  return Pack(index, static_cast<std::size_t>(data - regions_[index].data));
}

const SharedRegion* SharedRegions::RegionOf(SharedAddress address, std::size_t bytes,
                                            std::size_t& offset) const {
  const RegionPlace place = UnpackRegion(address);
  if (place.index >= count()) return nullptr;
  const SharedRegion& found = regions_[place.index];
  offset = place.offset;
  if (offset > found.bytes || bytes > found.bytes - offset) return nullptr;
  return &found;
}

const std::byte* SharedRegions::ResolveForReading(SharedAddress address, std::size_t bytes) const {
  std::size_t offset = 0;
  const SharedRegion* found = RegionOf(address, bytes, offset);
  return found != nullptr && found->writable_by_peer ? found->data + offset : nullptr;
}

std::byte* SharedRegions::ResolveForWriting(SharedAddress address, std::size_t bytes) const {
  std::size_t offset = 0;
  const SharedRegion* found = RegionOf(address, bytes, offset);
  if (found == nullptr || !found->writable || !found->writable_by_peer) return nullptr;
  return found->data + offset;
}

}  // namespace phub::transport
