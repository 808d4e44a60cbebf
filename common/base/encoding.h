// Encodings of f32 gradients on the wire, which take fewer bytes than their elements. Pure; any
// thread.
//
// A payload holds one chunk of `count` elements and can be decoded by itself. All numbers are
// little-endian:
//
//   encoding   payload                                 an element that is decoded
//   int8       f32 scale[blocks], int8 q[count]        q[i] * scale[i / kInt8Block], rounded to f32
//   topk       f32 value[kept], index[kept]            0 + value, where an index names it; else 0
//   randomk    u64 seed, f32 value[kept]               0 + value, at RandomPlace(); else 0
//
// - int8: every kInt8Block elements have a scale, which is the greatest magnitude / 127.
// - topk: indices ascend. They are u16 if the chunk has at most 2^16 elements, otherwise u32.
// - randomk: the kept elements follow from the seed. The ranks of a round use the same seed, so
//   that all of them send the same elements, but the daemon does not depend on that.
// - An encoder that meets NaN or an infinity sends NaN: the scale of the block, or all values of
//   the chunk. So screening finds the rank.
// common/simd/encode.h has the encoder, common/simd/fold_encoded.cc the decoder.
#pragma once

#include <cstddef>
#include <cstdint>

namespace phub::numeric {

enum class Encoding : std::uint8_t { kNone = 0, kInt8 = 1, kTopK = 2, kRandomK = 3 };
inline constexpr std::uint8_t kEncodingMax = 3;

// The encoding of a key's gradients.
struct GradientEncoding {
  Encoding kind = Encoding::kNone;
  std::uint32_t kept_millionths = 0;  // topk and randomk: the share of elements that are sent

  bool none() const { return kind == Encoding::kNone; }
  friend constexpr bool operator==(const GradientEncoding&, const GradientEncoding&) = default;
};

constexpr const char* ToString(Encoding kind) {
  switch (kind) {
    case Encoding::kNone: return "none";
    case Encoding::kInt8: return "int8";
    case Encoding::kTopK: return "topk";
    case Encoding::kRandomK: return "randomk";
  }
  return "unknown";
}
// topk and randomk.
constexpr bool IsSparse(Encoding kind) {
  return kind == Encoding::kTopK || kind == Encoding::kRandomK;
}

inline constexpr std::size_t kInt8Block = 256;
inline constexpr std::uint32_t kMillion = 1'000'000;
// Above this share, an encoded chunk may take more bytes than its elements.
inline constexpr std::uint32_t kKeptMax = kMillion / 2;

constexpr std::size_t Int8Blocks(std::size_t count) {
  return (count + kInt8Block - 1) / kInt8Block;
}
// The elements that are sent of a chunk: at least one.
constexpr std::size_t KeptOf(const GradientEncoding& encoding, std::size_t count) {
  const std::uint64_t scaled = std::uint64_t{count} * encoding.kept_millionths;
  const std::size_t kept = static_cast<std::size_t>((scaled + kMillion - 1) / kMillion);
  return kept > 0 ? kept : 1;
}
constexpr std::size_t IndexBytes(std::size_t count) { return count <= (1u << 16) ? 2 : 4; }

// The size of the payload of a chunk. REQUIRES: count > 0; an encoding.
constexpr std::size_t EncodedBytes(const GradientEncoding& encoding, std::size_t count) {
  switch (encoding.kind) {
    case Encoding::kInt8: return Int8Blocks(count) * sizeof(float) + count;
    case Encoding::kTopK: return KeptOf(encoding, count) * (sizeof(float) + IndexBytes(count));
    case Encoding::kRandomK: return sizeof(std::uint64_t) + KeptOf(encoding, count) * sizeof(float);
    case Encoding::kNone: break;
  }
  return count * sizeof(float);
}

// A rank has the payloads of a key's chunks one after the other, each at a multiple of 8 bytes.
constexpr std::size_t EncodedStride(const GradientEncoding& encoding, std::size_t chunk_elements) {
  return (EncodedBytes(encoding, chunk_elements) + 7) / 8 * 8;
}
constexpr std::uint64_t EncodedKeyBytes(const GradientEncoding& encoding, std::uint64_t elements,
                                        std::size_t chunk_elements) {
  const std::uint64_t whole = (elements - 1) / chunk_elements;
  const auto last = static_cast<std::size_t>(elements - whole * chunk_elements);
  return whole * EncodedStride(encoding, chunk_elements) + EncodedBytes(encoding, last);
}

// A hash of 64 bits (splitmix64).
constexpr std::uint64_t Mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}
// randomk: the chunk is cut into `kept` parts of about the same size. One element of each is sent.
// RandomPlace is that of part `number`, which begins at RandomPart.
constexpr std::size_t RandomPart(std::size_t count, std::size_t kept, std::size_t number) {
  return static_cast<std::size_t>(std::uint64_t{number} * count / kept);
}
constexpr std::size_t RandomPlace(std::uint64_t seed, std::size_t count, std::size_t kept,
                                  std::size_t number) {
  const std::size_t begin = RandomPart(count, kept, number);
  const std::uint64_t size = RandomPart(count, kept, number + 1) - begin;
  return begin + static_cast<std::size_t>(((Mixed(seed + number) >> 32) * size) >> 32);
}
// The seed of all ranks for a chunk of a round.
constexpr std::uint64_t SeedOf(std::uint32_t key, std::uint64_t iteration, std::uint64_t chunk) {
  return Mixed(Mixed(Mixed(key) ^ iteration) ^ chunk);
}

// Whether an encoder can have made the payload: scales are NaN or finite and not negative, and
// indices ascend below `count`. REQUIRES: EncodedBytes() bytes.
bool IsEncoded(const GradientEncoding& encoding, std::size_t count, const std::byte* payload);

}  // namespace phub::numeric
