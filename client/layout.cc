#include "client/layout.h"

#include <fmt/core.h>

#include <utility>

#include "absl/status/status.h"
#include "common/base/check.h"

namespace phub::client {
namespace {

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
  for (const std::uint32_t lane : view.chunk_bins) {
    if (lane >= next_chunk.size())
      return absl::InternalError(fmt::format(
          "the daemon placed a chunk of key {} on core loop {}, but the rack has only {}",
          view.name, lane, next_chunk.size()));
    if (next_chunk[lane] == kChunksPerShardMax)
      return absl::ResourceExhaustedError(
          fmt::format("key {} would exceed the limit of core loop {}, {} chunks; use a larger "
                      "chunk_bytes",
                      view.name, lane, kChunksPerShardMax));
    const ChunkMap::Chunk cut = map.At(layout.chunks.size());
    layout.chunks.push_back({.lane = lane,
                             .chunk = ChunkIndex{next_chunk[lane]++},
                             .element_offset = cut.element_offset,
                             .element_count = cut.element_count,
                             .sender = cut.sender,
                             .receiver = cut.receiver,
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

void LaneLayout::RemoveLast(const KeyLayout& key) {
  PHUB_CHECK(key.key.value + 1 == key_count_, "key={} keys={}", key.key.value, key_count_);
  for (const ChunkPlace& place : key.chunks) --next_chunk_[place.lane];
  --key_count_;
}

}  // namespace phub::client
