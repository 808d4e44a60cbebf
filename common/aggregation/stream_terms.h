// What a worker must know of a stream of sums to take part in it. The core loop sends it over the
// worker's lane as the payload of "the stream is ..." (CoreAction::kStreamIs), at most 96 bytes, so
// that it travels inline (common/wire/message.h). It contains the lease's key: the lane is as
// secret as the gradients on it.
//
//   at  bytes
//    0   4  number of the lease
//    4   1  this worker's number
//    5   1  workers of the lease
//    6   2  integers of a block
//    8   4  positions that may be open at once
//   12   4  blocks of the largest chunk
//   16  16  key of the lease
//   32  18  address (IPv4 as mapped to IPv6) and port of the aggregator
//   50   6  zero
// All numbers are little-endian. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/aggregation/packet.h"
#include "common/aggregation/stream.h"

namespace phub::aggregation {

inline constexpr std::size_t kStreamTermsBytes = 56;
// The exponents of a chunk's blocks travel inline, too: one byte each in announcements and
// assignments. A chunk with more blocks is summed over tcp.
inline constexpr std::uint32_t kChunkBlocksMax = 96;
// The most chunks of a core loop that a stream has: 4 GiB of gradients in chunks of 64 KiB. Both
// ends know it; later chunks are summed over tcp.
inline constexpr std::uint32_t kStreamChunksMax = 1u << 16;

struct StreamTerms {
  LeaseNumber lease{};
  std::uint8_t worker = 0;
  std::uint8_t worker_count = 0;
  std::uint16_t count_max = 0;
  Geometry geometry{};
  phub_lease_key key{};
  phub_endpoint aggregator{};

  friend bool operator==(const StreamTerms& a, const StreamTerms& b);
};

// The number of blocks for AddChunk() of either stream: 0 if the chunk has too many.
// REQUIRES: block > 0.
std::uint32_t BlocksOf(std::uint32_t element_count, std::uint32_t block);

// The worker's view of the lease: its packets are checked with it (phub_packet_check). It has no
// addresses of other workers and of the core loop, whose packets a worker never accepts directly.
phub_lease LeaseOf(const StreamTerms& terms);

void EncodeStreamTerms(const StreamTerms& terms, std::span<std::byte, kStreamTermsBytes> bytes);
// False unless the bytes are terms that a worker can follow; then `terms` is unchanged.
[[nodiscard]] bool DecodeStreamTerms(std::span<const std::byte> bytes, StreamTerms& terms);

}  // namespace phub::aggregation
