// Which core loop owns each chunk: longest processing time first. A pure function of the ordered
// batches of keys, so that every daemon, client and simulation derives the same answer.
//
// A batch's chunks go, largest first, to the bin with the least load so far. Ties are settled by
// order: of equal chunks the one of the earlier key goes first, then the one at the lower offset;
// of equally loaded bins the one with the lowest index takes it. A placed chunk never moves: later
// batches are placed on top of the loads that are there.
//
// The load of a chunk is its bytes, and bins are alike. With chunks that are small against a bin's
// share the heaviest bin is within 1 % of the mean; no placement does better than one chunk over.
//
// Thread-free: any thread, no state but what is given.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"

namespace phub::server {

// A place for chunks: a core loop. Its index in the span of bins settles ties.
struct PlacementBin {
  CoreIndex core{};
  std::uint64_t load_bytes = 0;
};

// How a key is cut: every chunk holds chunk_bytes but the last, which holds the rest.
constexpr std::uint64_t ChunkCount(std::uint64_t key_bytes, std::uint64_t chunk_bytes) {
  return key_bytes / chunk_bytes + (key_bytes % chunk_bytes != 0 ? 1 : 0);
}
constexpr std::uint64_t ChunkBytes(std::uint64_t key_bytes, std::uint64_t chunk_bytes,
                                   std::uint64_t chunk) {
  const std::uint64_t offset = chunk * chunk_bytes;
  return key_bytes - offset < chunk_bytes ? key_bytes - offset : chunk_bytes;
}

// The core of every chunk of every key, in offset order: result[key][chunk]. Adds to the bins'
// loads. REQUIRES: at least one bin, chunk_bytes > 0; a key of 0 bytes has no chunks.
// O(n log n) for n chunks.
std::vector<std::vector<CoreIndex>> PlaceKeys(std::span<PlacementBin> bins,
                                              std::span<const std::uint64_t> key_bytes,
                                              std::uint64_t chunk_bytes);

}  // namespace phub::server
