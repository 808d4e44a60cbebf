#include "server/placement/placement.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>

#include "common/base/check.h"
#include "common/base/fnv1a.h"

namespace phub::server {
namespace {

struct Piece {
  std::uint64_t bytes = 0;
  std::size_t key = 0;
  std::size_t chunk = 0;
};

// In key order, and within a key in offset order, so that a stable sort by size breaks ties as
// documented.
std::vector<Piece> CutIntoChunks(std::span<const std::uint64_t> key_bytes,
                                 std::uint64_t chunk_bytes) {
  std::vector<Piece> pieces;
  for (std::size_t key = 0; key < key_bytes.size(); ++key) {
    const std::uint64_t count = ChunkCount(key_bytes[key], chunk_bytes);
    for (std::uint64_t chunk = 0; chunk < count; ++chunk) {
      pieces.push_back({ChunkBytes(key_bytes[key], chunk_bytes, chunk), key, chunk});
    }
  }
  return pieces;
}

// The same on every daemon.
std::uint64_t HashOf(std::string_view text) {
  const std::uint64_t hash = Fnv1a(std::as_bytes(std::span(text)));
  return hash ^ hash >> 32;  // the low bits of FNV-1a alone are weak
}

constexpr std::uint32_t kBinsForWholeChunks = 16;
constexpr std::uint32_t kChunkGranularityBytes = 64;  // whole cache lines and vectors

}  // namespace

std::uint32_t ChunkBytesForBins(std::uint32_t chunk_bytes, std::uint32_t bin_count) {
  for (std::uint64_t bins = kBinsForWholeChunks; bins < bin_count; bins *= 2) {
    const std::uint32_t half = chunk_bytes / 2;
    if (half < kChunkBytesMin || half % kChunkGranularityBytes != 0) break;
    chunk_bytes = half;
  }
  return chunk_bytes;
}

std::vector<PlacementBin> BinsForJob(std::uint32_t bin_count, std::string_view job_name) {
  PHUB_CHECK(bin_count > 0);
  const std::uint64_t first = HashOf(job_name) % bin_count;
  std::vector<PlacementBin> bins;
  for (std::uint32_t i = 0; i < bin_count; ++i) {
    bins.push_back({BinIndex{static_cast<std::uint32_t>((first + i) % bin_count)}, 0});
  }
  return bins;
}

std::vector<std::vector<BinIndex>> PlaceKeys(std::span<PlacementBin> bins,
                                             std::span<const std::uint64_t> key_bytes,
                                             std::uint64_t chunk_bytes) {
  PHUB_CHECK(!bins.empty() && chunk_bytes > 0, "bins={} chunk_bytes={}", bins.size(), chunk_bytes);
  std::vector<std::vector<BinIndex>> placement(key_bytes.size());
  for (std::size_t key = 0; key < key_bytes.size(); ++key) {
    placement[key].resize(ChunkCount(key_bytes[key], chunk_bytes));
  }
  std::vector<Piece> pieces = CutIntoChunks(key_bytes, chunk_bytes);
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.bytes > b.bytes; });

  using LoadAndBin = std::pair<std::uint64_t, std::size_t>;  // least load first, then lowest index
  std::priority_queue<LoadAndBin, std::vector<LoadAndBin>, std::greater<>> lightest;
  for (std::size_t bin = 0; bin < bins.size(); ++bin) lightest.emplace(bins[bin].load_bytes, bin);
  for (const Piece& piece : pieces) {
    const std::size_t bin = lightest.top().second;
    lightest.pop();
    placement[piece.key][piece.chunk] = bins[bin].bin;
    bins[bin].load_bytes += piece.bytes;
    lightest.emplace(bins[bin].load_bytes, bin);
  }
  return placement;
}

}  // namespace phub::server
