// The limits of memory and of arithmetic. Some loops move the bytes of a kernel and compute
// nothing. Others do the arithmetic of a kernel, for cases where caches deliver data faster than
// that. They are independent of common/simd, so that a weakness of its loops does not lower the
// ceiling too. Pure; any thread; dispatched to the machine's widest instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/element_type.h"
#include "common/base/encoding.h"

namespace phub::bench {

enum class Access : std::uint8_t {
  kRead,
  kUpdate,  // read and written in place
  kWrite,
};

// The bytes per step of the unrolled loops: 4 of the longest vectors.
inline constexpr std::size_t kStepBytes = 256;
inline constexpr std::size_t kStreamsMax = 64;

// One array of `element_bytes` per element, aligned to 64 bytes.
struct Stream {
  Access access;
  std::byte* data;
  std::size_t element_bytes;
};

// The order in which a loop visits the streams: a block of the first stream, then a block of the
// second, and so on. `block_bytes` is a multiple of kStepBytes, in the narrowest stream. With small
// blocks the loop reads the streams side by side, as a kernel does. With large blocks it reads
// nearly one stream at a time. No kernel can do that, but it may be faster. Stores to kWrite
// streams are plain or non-temporal.
struct CeilingForm {
  std::size_t block_bytes;
  bool non_temporal;
};

// Passes once over `count` elements (a multiple of kStepBytes) of every stream. Streams to read are
// loaded. In streams to update, 1 is added to each 32-bit word (the smallest change to a float).
// Streams to write are filled. Returns a value that depends on every load.
std::uint32_t MoveStreams(std::span<const Stream> streams, std::size_t count,
                          const CeilingForm& form);

// Loads `bytes` (a multiple of kStepBytes) once, in order.
std::uint32_t LoadOnly(const std::byte* data, std::size_t bytes);

// Loads halves (kF16 or kBf16), widens each to f32 and adds it: the minimum work of a sum of halves
// in f32. Nothing is screened or stored.
std::uint32_t WidenAndAdd(numeric::ElementType type, const std::byte* data, std::size_t bytes);

// Narrows floats to f16 and stores `bytes` (a multiple of kStepBytes): the minimum work after an
// f16 sum. There is no such loop for bf16, since machines narrow to bf16 in too many ways.
void NarrowToF16(std::byte* data, std::size_t bytes);

// Decodes payloads of `count` elements and adds them up: the minimum work of a sum of encoded
// gradients. int8: widens, converts, multiplies and adds. Nothing is screened or stored, and one
// scale of each payload is used for all its blocks. topk and randomk: adds the values at their
// places in `sum`, one element after the other.
std::uint32_t DecodeAndAdd(const numeric::GradientEncoding& encoding,
                           std::span<const std::byte* const> payloads, std::size_t count,
                           float* sum);

// Two divisions and a square root for each of `count` floats (a multiple of kStepBytes): the
// minimum work of a step of Adam.
std::uint32_t DivideAndRoot(const float* data, std::size_t count);

}  // namespace phub::bench
