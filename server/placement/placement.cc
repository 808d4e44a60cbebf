#include "server/placement/placement.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>

#include "common/base/check.h"

namespace phub::server {
namespace {

struct Piece {
  std::uint64_t bytes = 0;
  std::size_t key = 0;
  std::size_t chunk = 0;
};

// In key order, and within a key in offset order: a stable sort by size then gives the rule.
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

}  // namespace

std::vector<std::vector<CoreIndex>> PlaceKeys(std::span<PlacementBin> bins,
                                              std::span<const std::uint64_t> key_bytes,
                                              std::uint64_t chunk_bytes) {
  PHUB_CHECK(!bins.empty() && chunk_bytes > 0, "bins={} chunk_bytes={}", bins.size(), chunk_bytes);
  std::vector<std::vector<CoreIndex>> cores(key_bytes.size());
  for (std::size_t key = 0; key < key_bytes.size(); ++key) {
    cores[key].resize(ChunkCount(key_bytes[key], chunk_bytes));
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
    cores[piece.key][piece.chunk] = bins[bin].core;
    bins[bin].load_bytes += piece.bytes;
    lightest.emplace(bins[bin].load_bytes, bin);
  }
  return cores;
}

}  // namespace phub::server
