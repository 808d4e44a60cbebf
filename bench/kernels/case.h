// The cases of the kernels bench, and their names. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/element_type.h"
#include "common/base/encoding.h"

namespace phub::bench {

using numeric::ElementType;
using numeric::GradientEncoding;

enum class Operation : std::uint8_t {
  kSum,       // sums the ranks' inputs into one output, all in `type`
  kSumToAll,  // the same sum into one output per rank, in one pass
  kFold,      // adds halves, or decodes and adds encoded gradients, to an f32 accumulator
  kSumFixed,  // a sum in fixed point into an f32 accumulator (sum=fixed); compare it with kSum
  // A sum and an update of parameters in place. If inputs are narrower than parameters, there is
  // one more output: the parameters in the inputs' type.
  kSgd,
  kMomentum,
  kAdam,
  kConvert,  // one input in `wire`, one output in `type`
};

// Where a case's arrays are, which determines what limits the kernel.
enum class Place : std::uint8_t {
  kL1,      // all of a thread's arrays together fit its core's L1 cache
  kL2,      // they fit its L2 cache
  kMemory,  // hundreds of MiB, in one call
  kChunks,  // as kMemory, but chunk by chunk in random order with a call each, as in a core loop
  kStaged,  // as kChunks, but inputs come from a few staging slots that stay in the cache
};

inline constexpr std::uint32_t kRanksLeast = 2;
inline constexpr std::uint32_t kRanksMost = 16;

struct Case {
  Place place = Place::kMemory;
  std::uint32_t threads = 1;
  Operation operation = Operation::kSum;
  ElementType wire = ElementType::kF32;  // the type of the inputs
  ElementType type = ElementType::kF32;  // the type of everything except accumulators and state
  std::uint32_t ranks = 4;
  GradientEncoding encoding = {};  // how the inputs, which are f32, are encoded

  bool encoded() const { return !encoding.none(); }
};

const char* ToString(Operation operation);  // "sum", "sum-to-all", ...
const char* ToString(Place place);          // "l1", "l2", "memory", "chunks", "staged"

// True if an update is fused with the sum. Such a kernel is also compared with two separate passes.
constexpr bool IsFused(Operation operation) {
  return operation == Operation::kSgd || operation == Operation::kMomentum ||
         operation == Operation::kAdam;
}
constexpr bool IsInCache(Place place) { return place == Place::kL1 || place == Place::kL2; }

// kernels/<place>-t<threads>/<bytes of all arrays>/w<ranks>/<type or wire-type>/<operation>, where
// an encoding takes the place of the wire type: int8-f32, topk1%-f32
std::string NameOf(const Case& each, std::size_t footprint_bytes);

// All cases, with 1 thread and with `threads` (once if that is 1), or a few cases of each kind.
std::vector<Case> AllCases(std::uint32_t threads);
std::vector<Case> SmokeCases(std::uint32_t threads);

}  // namespace phub::bench
