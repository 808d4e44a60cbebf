#include "common/transport/shm/shared_regions.h"

#include <cstddef>
#include <functional>
#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace phub::transport {
namespace {

bool BeginsIn(const SharedRegion& region, const std::byte* data) {
  const std::less<const std::byte*> before;
  return !before(data, region.data) && before(data, region.data + region.bytes);
}

// REQUIRES: the first byte is in the region.
bool EndsIn(const SharedRegion& region, const std::byte* data, std::size_t bytes) {
  return bytes <= region.bytes - static_cast<std::size_t>(data - region.data);
}

}  // namespace

SharedRegions::SharedRegions(std::uint32_t regions_max)
    : regions_max_(regions_max),
      regions_(std::make_unique_for_overwrite<SharedRegion[]>(regions_max)),
      group_regions_(
          std::make_unique_for_overwrite<const SharedRegion*[]>(wire::kGroupRegionsMax)) {
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

bool SharedRegions::AddAt(std::uint32_t index, std::shared_ptr<const SharedMemory> memory,
                          bool writable_by_peer) {
  PHUB_CHECK(memory != nullptr && *memory && memory->bytes() <= wire::kSharedRegionBytesMax);
  const std::uint32_t place = index - wire::kGroupRegionsFirst;
  if (index < wire::kGroupRegionsFirst || place >= wire::kGroupRegionsMax) return false;
  if (group_memory_.contains(index)) return false;
  const SharedRegion region{memory->data(), memory->bytes(), memory->writable(), writable_by_peer};
  const auto added = std::make_shared<const GroupRegion>(GroupRegion{region, std::move(memory)});
  group_memory_[index] = added;
  const std::uint32_t end = group_end_.load(std::memory_order_relaxed);
  for (std::uint32_t i = end; i < place; ++i) group_regions_[i] = nullptr;
  std::atomic_ref(group_regions_[place]).store(&added->region, std::memory_order_release);
  if (place >= end) group_end_.store(place + 1, std::memory_order_release);
  return true;
}

std::shared_ptr<const void> SharedRegions::Remove(std::uint32_t index) {
  const auto found = group_memory_.find(index);
  if (found == group_memory_.end()) return nullptr;
  std::atomic_ref(group_regions_[index - wire::kGroupRegionsFirst])
      .store(nullptr, std::memory_order_release);
  std::shared_ptr<const void> removed = std::move(found->second);
  group_memory_.erase(found);
  return removed;
}

const SharedRegion* SharedRegions::GroupRegionAt(std::uint32_t index) const {
  const std::uint32_t place = index - wire::kGroupRegionsFirst;
  if (index < wire::kGroupRegionsFirst || place >= group_end_.load(std::memory_order_acquire))
    return nullptr;
  return std::atomic_ref(group_regions_[place]).load(std::memory_order_acquire);
}

SharedRegions::Found SharedRegions::LocateInGroups(const std::byte* data, std::size_t bytes,
                                                   std::uint32_t& hint) const {
  const std::uint32_t end = wire::kGroupRegionsFirst + group_end_.load(std::memory_order_acquire);
  for (std::uint32_t index = wire::kGroupRegionsFirst; index < end; ++index) {
    const SharedRegion* const each = GroupRegionAt(index);
    if (each == nullptr || !BeginsIn(*each, data)) continue;
    if (!EndsIn(*each, data, bytes)) return {};
    hint = index;
    return {each, index};
  }
  return {};
}

SharedRegions::Found SharedRegions::Locate(const std::byte* data, std::size_t bytes,
                                           std::uint32_t& hint) const {
  const SharedRegion* const of_group = GroupRegionAt(hint);
  if (of_group != nullptr && BeginsIn(*of_group, data) && EndsIn(*of_group, data, bytes))
    return {of_group, hint};
  const std::uint32_t regions = count();
  std::uint32_t index = hint < regions ? hint : 0;
  for (std::uint32_t i = 0; i < regions; ++i) {
    const SharedRegion& each = regions_[index];
    if (BeginsIn(each, data)) {
      // Regions do not overlap, so no other region can contain the bytes.
      if (!EndsIn(each, data, bytes)) return {};
      hint = index;
      return {&each, index};
    }
    if (++index == regions) index = 0;
  }
  return LocateInGroups(data, bytes, hint);
}

std::uint32_t SharedRegions::Find(const std::byte* data, std::size_t bytes,
                                  std::uint32_t& hint) const {
  return Locate(data, bytes, hint).index;
}

SharedAddress SharedRegions::AddressOf(const std::byte* data, std::size_t bytes,
                                       std::uint32_t& hint) const {
  const Found found = Locate(data, bytes, hint);
  if (found.region == nullptr) return {};
  return Pack(found.index, static_cast<std::size_t>(data - found.region->data));
}

const SharedRegion* SharedRegions::RegionOf(SharedAddress address, std::size_t bytes,
                                            std::size_t& offset) const {
  const RegionPlace place = UnpackRegion(address);
  const SharedRegion* const found =
      place.index < count() ? &regions_[place.index] : GroupRegionAt(place.index);
  if (found == nullptr) return nullptr;
  offset = place.offset;
  if (offset > found->bytes || bytes > found->bytes - offset) return nullptr;
  return found;
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
