// A training job drawn from a seed, with keys of all types, operations and optimizers, and what
// must come out of it: parameters after every round, computed serially, an element at a time.
//
// Gradients are made from a hash of the parameter bytes that the rank read. Whoever reads a mixture
// of two versions pushes something else, and every later version differs.
#pragma once

#include <phub/client.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "common/simd/kernels.h"
#include "tests/support/rack_sum.h"

namespace phub::process {

using Bytes = std::vector<std::byte>;

struct RandomRound {
  bool assigns = false;
  std::uint32_t root = 0;  // assigns
  Optimizer optimizer;     // reduces: in force for this round
};

// Of jobs with apply_iteration: what makes an iteration one to be skipped, if anything does.
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
  std::uint32_t batch = 0;          // keys are added batch by batch
  std::vector<RandomRound> rounds;  // [iteration - 1]
  std::vector<Bytes> expected;      // [iteration]: in parameter_type; [0] zeros
};

struct RandomJob {
  std::string name;
  std::uint64_t seed = 0;
  std::uint32_t world_size = 1;
  std::uint32_t chunk_bytes = 256;
  std::uint32_t slots_per_lane = 1;
  std::uint32_t iterations = 1;
  std::uint32_t daemons = 1;     // of the rack that runs it
  bool restart = false;          // two versions are kept
  bool apply_iteration = false;  // then all keys have the same operation in a round
  double clip_norm = 0.0;
  bool skip_nonfinite = false;
  std::vector<RandomTrouble> troubles;  // [iteration - 1], with apply_iteration
  std::vector<std::uint64_t> skipped;   // [iteration]: how many were, up to it
  // Of jobs that span racks: ranks are dealt to them in equal parts.
  std::uint32_t racks = 1;
  std::string plan;
  std::vector<std::vector<oracle::RackSum>> sums;  // [key][chunk]: at the home
  std::vector<RandomKey> keys;
};

RandomJob DrawJob(std::uint64_t seed);
// Computes key.expected and job.skipped; `sums` are there, if the job spans racks.
void Expect(RandomJob& job);
std::string Describe(const RandomJob& job);
simd::Reduction ReductionOf(Operation operation);
// Whether that is the iteration's trouble, at this key and rank.
bool IsIn(const RandomJob& job, RandomTrouble::Kind kind, std::size_t key, std::uint64_t iteration,
          std::uint32_t rank);

// What rank `rank` pushes in that round, in the key's gradient type, given what it read.
Bytes GradientOf(const RandomJob& job, std::size_t key, std::uint64_t iteration, std::uint32_t rank,
                 const Bytes& parameters);
// What the root of an assignment sends, in the key's type.
Bytes AssignmentOf(const RandomJob& job, std::size_t key, std::uint64_t iteration);

}  // namespace phub::process
