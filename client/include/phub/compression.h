// Gradients that take fewer bytes on the wire. See KeyOptions::compression.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "phub/export.h"

namespace phub {

// How the gradients of a key are encoded when they are pushed. The daemon decodes them and sums in
// f32, in the order of the ranks. Key::gradients() and the new parameters stay as they are.
//
// For f32 keys with kSum or kMean, movement kAllReduce and no other gradient_type. All ranks use
// the same kind and share. Not with sum=kFixed; kTopK and kRandomK not with restart=true.
struct Compression {
  enum class Kind : std::uint8_t {
    kNone = 0,
    kInt8 = 1,     // 8 bits for each element, and a scale for 256 elements: 0.254 of the bytes
    kTopK = 2,     // the elements of each chunk that have the greatest magnitude; 6 bytes for each
    kRandomK = 3,  // elements of each chunk that are drawn for each round, the same on all ranks;
                   // 4 bytes for each
  };
  Kind kind = Kind::kNone;
  // kTopK, kRandomK: the share of a chunk's elements that is sent, up to 0.5, in steps of one
  // millionth. At least one element of each chunk is sent.
  double kept = 0.0;
  // What one push leaves out is added to the gradients of the next one. It takes memory of the
  // size of the gradients, which belongs to this process: it is neither in checkpoints nor given
  // to a process that takes over the rank (so not with restart=true). Such pushes cannot be
  // cancelled. Unset: true for kTopK and kRandomK, otherwise false.
  std::optional<bool> error_feedback = {};

  static Compression Int8(bool error_feedback = false) {
    return {Kind::kInt8, 0.0, error_feedback};
  }
  static Compression TopK(double kept) { return {Kind::kTopK, kept, {}}; }
  static Compression RandomK(double kept) { return {Kind::kRandomK, kept, {}}; }
};

}  // namespace phub
