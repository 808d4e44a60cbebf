#include "client/layout.h"

#include <fmt/core.h>

#include <utility>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/base/group_keys.h"

namespace phub::client {
namespace {

Rank InJob(const KeyPlacementView& view, Rank member) {
  return member == kEveryRank || view.members.empty() ? member : view.members[member.value];
}

// The numbers of a key's chunks on each lane: those that the daemon gave, or those that follow.
class ChunkNumbers {
 public:
  ChunkNumbers(const KeyPlacementView& view, std::vector<std::uint32_t>& next_chunk)
      : view_(view), next_chunk_(next_chunk), seen_(next_chunk.size(), false) {}

  absl::StatusOr<ChunkIndex> Next(std::uint32_t lane) {
    if (lane >= next_chunk_.size())
      return absl::InternalError(fmt::format(
          "the daemon placed a chunk of key {} on core loop {}, but the rack has only {}",
          view_.name, lane, next_chunk_.size()));
    std::uint32_t& next = next_chunk_[lane];
    if (!view_.first_chunks.empty() && !seen_[lane]) {
      if (lanes_seen_ == view_.first_chunks.size())
        return absl::InternalError(fmt::format("the daemon numbered key {} on only {} core loops",
                                               view_.name, view_.first_chunks.size()));
      next = view_.first_chunks[lanes_seen_++];
    }
    seen_[lane] = true;
    if (next >= kChunksPerShardMax)
      return absl::ResourceExhaustedError(
          fmt::format("key {} would exceed the limit of core loop {}, {} chunks; use a larger "
                      "chunk_bytes",
                      view_.name, lane, kChunksPerShardMax));
    return ChunkIndex{next++};
  }

 private:
  const KeyPlacementView& view_;
  std::vector<std::uint32_t>& next_chunk_;
  std::vector<bool> seen_;  // [lane]
  std::size_t lanes_seen_ = 0;
};

absl::StatusOr<KeyLayout> LayOut(const KeyPlacementView& view, std::uint32_t chunk_bytes,
                                 std::vector<std::uint32_t>& next_chunk) {
  PHUB_CHECK(view.element_bytes > 0 && chunk_bytes % view.element_bytes == 0,
             "key={} element_bytes={} chunk_bytes={}", view.name, view.element_bytes, chunk_bytes);
  const std::uint32_t chunk_elements = chunk_bytes / view.element_bytes;
  const ChunkMap map(view.element_count, view.parts, chunk_elements);
  if (view.chunk_bins.size() != map.count())
    return absl::InternalError(fmt::format(
        "the daemon placed {} chunks of key {} instead of {} ({} elements in chunks of {})",
        view.chunk_bins.size(), view.name, map.count(), view.element_count, chunk_elements));
  KeyLayout layout{.key = view.key, .element_count = view.element_count, .chunks = {}};
  layout.chunks.reserve(map.count());
  ChunkNumbers numbers(view, next_chunk);
  for (const std::uint32_t lane : view.chunk_bins) {
    const absl::StatusOr<ChunkIndex> number = numbers.Next(lane);
    if (!number.ok()) return number.status();
    const ChunkMap::Chunk cut = map.At(layout.chunks.size());
    layout.chunks.push_back({.lane = lane,
                             .chunk = *number,
                             .element_offset = cut.element_offset,
                             .element_count = cut.element_count,
                             .sender = InJob(view, cut.sender),
                             .receiver = InJob(view, cut.receiver),
                             .sent_offset = cut.sent_offset,
                             .received_offset = cut.received_offset});
  }
  return layout;
}

}  // namespace

LaneLayout::LaneLayout(std::uint32_t chunk_bytes, std::uint32_t lane_count)
    : chunk_bytes_(chunk_bytes), next_chunk_(lane_count, 0) {
  PHUB_CHECK(chunk_bytes_ > 0 && chunk_bytes_ <= kChunkBytesMax, "chunk_bytes={}", chunk_bytes_);
}

absl::StatusOr<std::vector<KeyLayout>> LaneLayout::AddKeys(std::span<const KeyPlacementView> keys) {
  std::vector<std::uint32_t> next_chunk = next_chunk_;
  std::vector<KeyLayout> layouts;
  layouts.reserve(keys.size());
  for (const KeyPlacementView& view : keys) {
    const std::uint64_t expected = key_count_ + layouts.size();
    if (view.key.value != expected)
      return absl::InternalError(fmt::format("the daemon gave key {} index {} instead of {}",
                                             view.name, view.key.value, expected));
    absl::StatusOr<KeyLayout> layout = LayOut(view, chunk_bytes_, next_chunk);
    if (!layout.ok()) return layout.status();
    layouts.push_back(*std::move(layout));
  }
  next_chunk_ = std::move(next_chunk);
  key_count_ += static_cast<std::uint32_t>(layouts.size());
  return layouts;
}

absl::StatusOr<std::vector<KeyLayout>> LaneLayout::AddGroupKeys(
    std::span<const KeyPlacementView> keys) const {
  std::vector<std::uint32_t> next_chunk(next_chunk_.size(), 0);
  std::vector<KeyLayout> layouts;
  for (const KeyPlacementView& view : keys) {
    if (view.key.value < kGroupKeysFirst || view.first_chunks.empty())
      return absl::InternalError(
          fmt::format("the daemon gave key {} index {} and {} numbers of chunks", view.name,
                      view.key.value, view.first_chunks.size()));
    absl::StatusOr<KeyLayout> layout = LayOut(view, chunk_bytes_, next_chunk);
    if (!layout.ok()) return layout.status();
    layouts.push_back(*std::move(layout));
  }
  return layouts;
}

void LaneLayout::RemoveLast(const KeyLayout& key) {
  PHUB_CHECK(key.key.value + 1 == key_count_, "key={} keys={}", key.key.value, key_count_);
  for (auto place = key.chunks.rbegin(); place != key.chunks.rend(); ++place)
    next_chunk_[place->lane] = place->chunk.value;
  --key_count_;
}

}  // namespace phub::client
