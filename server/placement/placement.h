// Which core loop of the rack owns each chunk: longest processing time first. A pure function of
// the job's name and its ordered batches of keys, so that every daemon of the rack computes the
// same result independently.
//
// A bin is a core loop. Bins are numbered over all daemons of the rack: first the core loops of
// daemon 0, then those of daemon 1, and so on. Each chunk of a batch, largest first, is placed in
// the bin with the least load of this job so far. Order breaks ties:
//   - equal chunks: the chunk of the earlier key first, then the chunk at the lower offset
//   - equally loaded bins: the bin that comes first in the span
// A hash of the job's name rotates the span, so that many small jobs do not all use the first core
// loop. A placed chunk never moves: later batches add to the existing loads. The load of other jobs
// does not count, because daemons learn of it at different times.
//
// The load of a chunk is its bytes in the key's own type, and all bins have the same capacity. If
// chunks are small compared to a bin's share, the heaviest bin is within 1 % of the mean. No
// placement guarantees less than one chunk above the mean.
//
// Any thread; no state except the arguments.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/ids.h"

namespace phub::server {

// 0-based number of a core loop among all core loops of the rack.
using BinIndex = Id<struct BinIndexTag, std::uint32_t>;

// A core loop that can own chunks. Its position in the span of bins breaks ties.
struct PlacementBin {
  BinIndex bin{};
  std::uint64_t load_bytes = 0;
};

// All bins of a rack, empty, in the order that breaks ties for this job. REQUIRES: bin_count > 0.
std::vector<PlacementBin> BinsForJob(std::uint32_t bin_count, std::string_view job_name);

// The chunk size for a rack of that many bins: halved for more than 16 bins, and again for every
// doubling, so that a model of 100 MB still balances within 1 %. Without that, ResNet-50 has 32.4
// chunks of 128 KiB per bin on 24 bins, and some bins are 1.5 % above the mean.
std::uint32_t ChunkBytesForBins(std::uint32_t chunk_bytes, std::uint32_t bin_count);

// How a key is cut: every chunk has chunk_bytes, except the last, which has the rest. Sizes are in
// the key's own type, and chunk_bytes is a multiple of that type's size.
constexpr std::uint64_t ChunkCount(std::uint64_t key_bytes, std::uint64_t chunk_bytes) {
  return key_bytes / chunk_bytes + (key_bytes % chunk_bytes != 0 ? 1 : 0);
}
constexpr std::uint64_t ChunkBytes(std::uint64_t key_bytes, std::uint64_t chunk_bytes,
                                   std::uint64_t chunk) {
  const std::uint64_t offset = chunk * chunk_bytes;
  return key_bytes - offset < chunk_bytes ? key_bytes - offset : chunk_bytes;
}

// The bin of every chunk of every key, in offset order: result[key][chunk]. Adds to the bins'
// loads. A key of 0 bytes has no chunks. O(n log n) for n chunks. REQUIRES: at least one bin,
// chunk_bytes > 0.
std::vector<std::vector<BinIndex>> PlaceKeys(std::span<PlacementBin> bins,
                                             std::span<const std::uint64_t> key_bytes,
                                             std::uint64_t chunk_bytes);

}  // namespace phub::server
