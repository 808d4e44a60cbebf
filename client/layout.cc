#include "client/layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "common/base/check.h"

namespace phub::client {
namespace {

absl::StatusOr<KeyLayout> LayOut(const KeyPlacementView& view, std::uint32_t chunk_bytes,
                                 std::span<const CoreIndex> cores,
                                 std::vector<std::uint32_t>& next_chunk) {
  const std::uint64_t chunk_count = ChunkCount(view.bytes, chunk_bytes);
  if (view.chunk_cores.size() != chunk_count)
    return absl::InternalError(fmt::format(
        "the daemon placed {} chunks of key {}, which has {} ({} bytes in chunks of {})",
        view.chunk_cores.size(), view.name, chunk_count, view.bytes, chunk_bytes));
  KeyLayout layout{.key = view.key, .bytes = view.bytes, .chunks = {}};
  layout.chunks.reserve(chunk_count);
  std::uint64_t offset_bytes = 0;
  for (const std::uint32_t core : view.chunk_cores) {
    const auto found = std::find(cores.begin(), cores.end(), CoreIndex{core});
    if (found == cores.end())
      return absl::InternalError(
          fmt::format("the daemon placed a chunk of key {} on core {}, which it did not list",
                      view.name, core));
    const auto lane = static_cast<std::uint32_t>(found - cores.begin());
    if (next_chunk[lane] == kChunksPerShardMax)
      return absl::ResourceExhaustedError(
          fmt::format("key {} brings core {} over {} chunks; use larger chunks", view.name, core,
                      kChunksPerShardMax));
    const std::uint64_t bytes = std::min<std::uint64_t>(chunk_bytes, view.bytes - offset_bytes);
    layout.chunks.push_back({.lane = lane,
                             .chunk = ChunkIndex{next_chunk[lane]++},
                             .offset_bytes = offset_bytes,
                             .bytes = static_cast<std::uint32_t>(bytes)});
    offset_bytes += bytes;
  }
  return layout;
}

}  // namespace

std::uint64_t ChunkCount(std::uint64_t bytes, std::uint32_t chunk_bytes) {
  return bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0);
}

LaneLayout::LaneLayout(std::uint32_t chunk_bytes, std::vector<CoreIndex> cores)
    : chunk_bytes_(chunk_bytes), cores_(std::move(cores)), next_chunk_(cores_.size(), 0) {
  PHUB_CHECK(chunk_bytes_ > 0 && chunk_bytes_ <= kChunkBytesMax, "chunk_bytes={}", chunk_bytes_);
}

absl::StatusOr<std::vector<KeyLayout>> LaneLayout::AddKeys(std::span<const KeyPlacementView> keys) {
  std::vector<std::uint32_t> next_chunk = next_chunk_;
  std::vector<KeyLayout> layouts;
  layouts.reserve(keys.size());
  for (const KeyPlacementView& view : keys) {
    const std::uint64_t expected = key_count_ + layouts.size();
    if (view.key.value != expected)
      return absl::InternalError(fmt::format("the daemon gave key {} the index {} instead of {}",
                                             view.name, view.key.value, expected));
    absl::StatusOr<KeyLayout> layout = LayOut(view, chunk_bytes_, cores_, next_chunk);
    if (!layout.ok()) return layout.status();
    layouts.push_back(*std::move(layout));
  }
  next_chunk_ = std::move(next_chunk);
  key_count_ += static_cast<std::uint32_t>(layouts.size());
  return layouts;
}

}  // namespace phub::client
