// A training job drawn from a seed, with keys of all types, operations and optimizers, and its
// expected results: the parameters after every round, computed serially, one element at a time.
//
// Gradients are a hash of the parameter bytes that the rank read. If a rank reads a mixture of two
// versions, it pushes different gradients, and every later version differs.
#pragma once

#include <phub/client.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/element_type.h"
#include "common/base/encoding.h"
#include "common/base/random.h"
#include "common/simd/kernels.h"
#include "tests/support/rack_sum.h"

namespace phub::process {

// The public types have the same values as the internal ones.
inline numeric::ElementType Internal(ElementType type) {
  return static_cast<numeric::ElementType>(type);
}
inline std::size_t SizeOf(ElementType type) { return numeric::ElementBytes(Internal(type)); }

using Bytes = std::vector<std::byte>;

struct RandomRound {
  bool assigns = false;
  std::uint32_t root = 0;  // for assigns
  Optimizer optimizer;     // for reduces: in force in this round
};

// For jobs with apply_iteration: why an iteration must be skipped, if at all.
struct RandomTrouble {
  enum class Kind : std::uint8_t { kNone, kAsks, kNonFinite } kind = Kind::kNone;
  std::uint32_t rank = 0, key = 0;
};

struct RandomKey {
  std::string name;
  ElementType type = f32;
  ElementType gradient_type = f32;
  ElementType parameter_type = f32;
  Operation operation = Operation::kSum;
  std::uint64_t element_count = 0;
  Compression compression;          // with error_feedback set
  std::uint32_t batch = 0;          // keys are added in batches
  std::vector<RandomRound> rounds;  // by iteration - 1
  std::vector<Bytes> expected;      // by iteration, in parameter_type; [0] is zeros
};

struct RandomJob {
  std::string name;
  std::uint64_t seed = 0;
  std::uint32_t world_size = 1;
  std::uint32_t chunk_bytes = 256;
  std::uint32_t slots_per_lane = 1;
  std::uint32_t iterations = 1;
  std::uint32_t daemons = 1;     // in the rack that runs it
  bool restart = false;          // two versions are kept
  bool apply_iteration = false;  // if true, all keys have the same operation in a round
  double clip_norm = 0.0;
  bool skip_nonfinite = false;
  std::uint32_t sum_block = 0;          // sum=fixed: elements of a block; 0: sum=float
  std::vector<RandomTrouble> troubles;  // by iteration - 1, with apply_iteration
  std::vector<std::uint64_t> skipped;   // by iteration: the number of skipped iterations so far
  // For jobs that span racks: each rack has the same number of ranks.
  std::uint32_t racks = 1;
  std::string plan;
  std::vector<std::vector<oracle::RackSum>> sums;  // by key and chunk: the sum at the home
  std::vector<RandomKey> keys;
};

RandomJob DrawJob(std::uint64_t seed);
// Computes key.expected and job.skipped. For a job that spans racks, `sums` must be set.
void Expect(RandomJob& job);
std::string Describe(const RandomJob& job);
simd::Reduction ReductionOf(Operation operation);
numeric::GradientEncoding EncodingOf(const RandomKey& key);
// Whether the iteration has this trouble at this key and rank.
bool IsIn(const RandomJob& job, RandomTrouble::Kind kind, std::size_t key, std::uint64_t iteration,
          std::uint32_t rank);

// The gradients that rank `rank` pushes in this round, in the key's gradient type, given the
// parameters that it read.
Bytes GradientOf(const RandomJob& job, std::size_t key, std::uint64_t iteration, std::uint32_t rank,
                 const Bytes& parameters);
// The values that the root of an assignment sends, in the key's type.
Bytes AssignmentOf(const RandomJob& job, std::size_t key, std::uint64_t iteration);

}  // namespace phub::process
