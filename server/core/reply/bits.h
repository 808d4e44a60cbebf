// Bitmaps with a bit per chunk or rank, and the header of messages to workers.
#pragma once

#include <cstdint>

#include "common/wire/message.h"
#include "server/core/job_shard.h"

namespace phub::server::reply {

inline constexpr std::uint32_t kWordBits = 64;

inline std::uint32_t WordsOfChunks(const JobShard& shard) {
  return (shard.chunk_count + kWordBits - 1) / kWordBits;
}

inline bool Test(const std::uint64_t* bits, std::uint32_t index) {
  return (bits[index / kWordBits] >> (index % kWordBits) & 1) != 0;
}

// These return the bit's old value.
inline bool TestAndSet(std::uint64_t* bits, std::uint32_t index) {
  const bool was = Test(bits, index);
  bits[index / kWordBits] |= std::uint64_t{1} << (index % kWordBits);
  return was;
}
inline bool TestAndClear(std::uint64_t* bits, std::uint32_t index) {
  const bool was = Test(bits, index);
  bits[index / kWordBits] &= ~(std::uint64_t{1} << (index % kWordBits));
  return was;
}

inline wire::MessageHeader HeaderFor(const JobShard& shard, wire::MessageKind kind) {
  wire::MessageHeader header;
  header.kind = kind;
  header.incarnation = shard.config.incarnation;
  header.membership_epoch = shard.config.membership_epoch;
  return header;
}

}  // namespace phub::server::reply
