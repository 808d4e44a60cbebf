// One thread's arrays for one case, and what is run on them: the kernel, the same work in two
// passes, and the loops that only move the bytes. One thread at a time.
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
  // Memory that arrays of `footprint_bytes` need, alignment and what Separate() uses included.
  static std::size_t ArenaBytes(std::size_t footprint_bytes, std::size_t chunk_bytes);

  // True if there are arrays that are written only.
  static bool HasOutputs(const Case& each);
  // True if outputs that no cache holds are stored past the caches.
  static bool Streams(const Case& each);
  // True if there is arithmetic that may take longer than a cache's loads: RunArithmetic()'s.
  static bool HasArithmetic(const Case& each);

  // Lays arrays out in `memory`, about `footprint_bytes` of them; chunks, where the place has any,
  // are of `chunk_bytes` of a rank's input. The seed orders the chunks.
  Workload(const Case& each, std::size_t footprint_bytes, std::size_t chunk_bytes,
           std::byte* memory, std::uint64_t seed);

  // Bytes of all arrays, and those that one pass reads and writes: what is updated counts twice.
  std::size_t footprint_bytes() const { return footprint_bytes_; }
  std::size_t traffic_bytes() const;
  // Those that the work in two passes moves, the sums in between written and read.
  std::size_t separate_traffic_bytes() const;
  std::size_t piece_count() const { return pieces_.size(); }

  // Fills the arrays, runs the kernel once, and compares every bit of every element (of large
  // arrays, one in many) with a serial reference. Empty, or what differs. With `separate`, what
  // RunSeparately() makes is compared instead.
  std::string Verify(bool separate);

  void Run();
  void RunSeparately();  // IsFused() cases: sums of everything, then updates of everything
  void RunCeiling(const CeilingForm& form);
  void RunLoads();       // every array's bytes, once
  void RunArithmetic();  // of inputs and f16 outputs, or of Adam's second moments

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
  // What one call computes: elements [begin, begin + count), of inputs [input_begin, ...).
  struct Piece {
    std::size_t begin = 0;
    std::size_t input_begin = 0;
    std::size_t count = 0;
  };

  void ListArrays();
  void LayOut(std::size_t footprint_bytes, std::size_t chunk_bytes, std::byte* memory);
  void Cut(std::size_t chunk_elements, std::uint64_t seed);
  simd::Round RoundOfCase() const;
  std::span<const std::byte* const> Inputs(const Piece& piece);
  simd::RoundMemory MemoryOf(const Piece& piece);
  void RunPiece(const Piece& piece);
  void Fill(const Array& array);
  template <class T>
  std::string Compare() const;
  template <class T>
  std::string CompareElement(const Piece& piece, std::size_t offset) const;

  Case case_;
  std::vector<Array> arrays_;  // in rank order, then what is updated, then outputs
  Array sums_{Role::kSums, Access::kUpdate, ElementType::kF32};
  std::vector<Piece> pieces_;
  std::size_t element_count_ = 0;
  std::size_t input_element_count_ = 0;
  std::size_t footprint_bytes_ = 0;
  simd::Round round_;
  std::vector<const std::byte*> inputs_;  // scratch of the calls, as are the rest
  std::vector<std::byte*> replies_;
  std::vector<Stream> streams_;
};

}  // namespace phub::bench
