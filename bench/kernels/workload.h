// One thread's arrays for one case, and the work on them: the kernel, the same work in two passes,
// and loops that only move the bytes. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/kernels/case.h"
#include "bench/kernels/ceilings.h"
#include "common/simd/kernels.h"

namespace phub::bench {

class Workload {
 public:
  // Bytes needed for arrays of `footprint_bytes`, including alignment and the buffers of
  // RunSeparately().
  static std::size_t ArenaBytes(std::size_t footprint_bytes, std::size_t chunk_bytes);

  // True if some arrays are only written.
  static bool HasOutputs(const Case& each);
  // True if outputs that do not fit a cache are stored past the caches.
  static bool Streams(const Case& each);
  // True if RunArithmetic() has work: arithmetic that may take longer than loads from a cache.
  static bool HasArithmetic(const Case& each);

  // Lays out about `footprint_bytes` of arrays in `memory`. Where the place uses chunks, a chunk is
  // `chunk_bytes` of a rank's input. The seed determines the order of the chunks.
  Workload(const Case& each, std::size_t footprint_bytes, std::size_t chunk_bytes,
           std::byte* memory, std::uint64_t seed);

  // The bytes of all arrays, and the bytes that one pass reads and writes. Updated arrays count
  // twice.
  std::size_t footprint_bytes() const { return footprint_bytes_; }
  std::size_t traffic_bytes() const;
  // The bytes that the work in two passes moves, with the intermediate sums written and read.
  std::size_t separate_traffic_bytes() const;
  std::size_t piece_count() const { return pieces_.size(); }

  // Fills the arrays, runs the kernel once, and compares all bits of every element (in large
  // arrays, of a sample) with a serial reference. Returns the first difference, or an empty string.
  // If `separate`, checks RunSeparately() instead.
  std::string Verify(bool separate);

  void Run();
  void RunSeparately();  // IsFused() cases: sums everything, then updates everything
  void RunCeiling(const CeilingForm& form);
  void RunLoads();  // loads all bytes of all arrays once
  // On halves' inputs and f16 outputs, on encoded inputs, or on Adam's second moments.
  void RunArithmetic();

 private:
  enum class Role : std::uint8_t { kInput, kParameters, kState, kOutput, kSums };
  struct Array {
    Role role;
    Access access;
    ElementType type;
    std::byte* data = nullptr;
    std::byte* At(std::size_t element) const {
      return data + element * numeric::ElementBytes(type);
    }
  };
  // One call's work: elements [begin, begin + count), and inputs from input_begin on.
  struct Piece {
    std::size_t begin = 0;
    std::size_t input_begin = 0;
    std::size_t count = 0;
  };

  void ListArrays();
  void LayOut(std::size_t footprint_bytes, std::size_t chunk_bytes, std::byte* memory);
  void Cut(std::size_t chunk_elements, std::uint64_t seed);
  simd::Round RoundOfCase() const;
  // A rank's gradient of a piece. Encoded gradients are one payload for each piece.
  std::byte* InputOf(const Array& array, const Piece& piece) const;
  simd::Encoded EncodedOf(const Piece& piece) const;
  std::size_t InputBytes() const;  // of one rank, for all elements that are staged at once
  std::span<const std::byte* const> Inputs(const Piece& piece);
  simd::RoundMemory MemoryOf(const Piece& piece);
  void RunPiece(const Piece& piece);
  void Fill(const Array& array);
  void FillEncoded(const Array& array);
  template <class T>
  std::string Compare() const;
  std::string CompareFixedSums() const;
  std::string CompareEncoded() const;
  std::vector<const std::byte*> RanksOf(const Piece& piece) const;
  template <class T>
  std::string CompareElement(const Piece& piece, const std::vector<const std::byte*>& inputs,
                             std::size_t offset) const;

  Case case_;
  // The inputs in rank order, then the updated arrays, then the outputs.
  std::vector<Array> arrays_;
  Array sums_{Role::kSums, Access::kUpdate, ElementType::kF32};
  std::vector<Piece> pieces_;
  std::size_t element_count_ = 0;
  std::size_t input_element_count_ = 0;
  std::size_t piece_elements_ = 0;  // all pieces but the last have this size
  std::size_t footprint_bytes_ = 0;
  simd::Round round_;
  std::vector<const std::byte*> inputs_;  // scratch space of the calls, as are the members below
  std::vector<std::byte*> replies_;
  std::vector<Stream> streams_;
};

}  // namespace phub::bench
