// What memory allows: loops that move the bytes of a kernel and compute nothing. And what
// arithmetic allows where caches deliver faster than that. Written apart from common/simd, so that
// a weakness of its loops does not lower the ceiling too. Pure; any thread; dispatched to the
// machine's widest instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/element_type.h"

namespace phub::bench {

enum class Access : std::uint8_t {
  kRead,
  kUpdate,  // read and written in place
  kWrite,
};

// What the loops are unrolled to: 4 of the longest vectors.
inline constexpr std::size_t kStepBytes = 256;
inline constexpr std::size_t kStreamsMax = 64;

// One array of `element_bytes` per element, aligned to 64 bytes.
struct Stream {
  Access access;
  std::byte* data;
  std::size_t element_bytes;
};

// How a loop goes over the streams: a block of the first, then of the second, ..., then the next
// block; of `block_bytes` (a multiple of kStepBytes) of the narrowest stream. Small blocks are a
// row of streams side by side, as a kernel reads them; large ones are nearly one stream at a time,
// which no kernel could, but memory may like better. Plain stores to kWrite streams, or
// non-temporal ones.
struct CeilingForm {
  std::size_t block_bytes;
  bool non_temporal;
};

// Passes once over `count` elements of every stream, each a multiple of kStepBytes: those read are
// loaded, those updated get 1 added to each 32-bit word (the least change to a float), those
// written are filled. Returns what depends on every load.
std::uint32_t MoveStreams(std::span<const Stream> streams, std::size_t count,
                          const CeilingForm& form);

// Loads `bytes` (a multiple of kStepBytes) once, in order.
std::uint32_t LoadOnly(const std::byte* data, std::size_t bytes);

// The same of halves (kF16 or kBf16), each widened to f32 and added to something: what no sum of
// halves in f32 can do without. Nothing is screened or stored.
std::uint32_t WidenAndAdd(numeric::ElementType type, const std::byte* data, std::size_t bytes);

// And what none of f16 can do without afterwards: floats narrowed, `bytes` (as above) of halves
// stored. (Of bf16, machines narrow in too many ways.)
void NarrowToF16(std::byte* data, std::size_t bytes);

// Two divisions and a square root for each of `count` floats (of kStepBytes): what no step of Adam
// can do without.
std::uint32_t DivideAndRoot(const float* data, std::size_t count);

}  // namespace phub::bench
