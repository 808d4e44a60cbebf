// What a simulated job does, drawn from a seed, and what must come out of it: the oracle.
//
// Two kinds of gradients, so that two kinds of error show:
//   lanes  rank w pushes v in every element i with i % world_size == w, else 0, and the key is a
//          plain sum. A correct result is v everywhere, exact whatever the order: 0 names a lost
//          worker, 2v one that was counted twice; v depends on key and iteration, so a stale or
//          misrouted chunk shows too.
//   hash   gradients are a hash of the parameter bytes that the rank read. Whoever reads a mixture
//          of two versions pushes something else, and every later version differs. So does a sum
//          in another order: of a job that spans racks, than its plan's.
// Expected parameters are computed serially, an element at a time, before anything runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/simd/kernels.h"
#include "common/wire/message.h"
#include "tests/support/rack_sum.h"

namespace phub::sim {

enum class GradientKind : std::uint8_t { kLanes, kHash };

struct RoundScript {
  wire::RoundOperation operation = wire::RoundOperation::kReduce;
  std::uint32_t root = 0;                  // kAssign
  wire::HyperParameters hyper_parameters;  // in force for this round
  bool skipped = false;                    // apply_iteration: by the oracle
};

// apply_iteration: what makes an iteration one to be skipped, if anything does.
struct TroubleScript {
  enum class Kind : std::uint8_t { kNone, kAsks, kNonFinite } kind = Kind::kNone;
  std::uint32_t rank = 0, key = 0;
};

struct KeyScript {
  std::string name;
  std::uint32_t element_count = 0;
  std::uint32_t batch = 0;  // keys are added batch by batch
  GradientKind gradients = GradientKind::kHash;
  simd::Optimizer optimizer = simd::Optimizer::kNone;
  bool mean = false;
  std::vector<RoundScript> rounds;           // [iteration - 1]
  std::vector<std::vector<float>> expected;  // [iteration]: parameters after it; [0] zeros
  // [iteration][array]: what the optimizer keeps. Nothing before the first reduction.
  std::vector<std::vector<std::vector<float>>> expected_states;
};

// How this job is meant to end.
enum class Fate : std::uint8_t {
  kCompletes,              // whatever the network does
  kWorkerDies,             // policy fail: one rank dies; every survivor is told which
  kWorkerSilent,           // the same, but nothing closes: only heartbeats tell
  kLaneBreaks,             // policy fail: one lane is reset; the job fails and names its rank
  kKeysDiffer,             // one rank adds another key: both are named
  kHyperParametersDiffer,  // one rank sets another learning rate: both are named
  kRootsDiffer,            // one rank broadcasts from another root: both are named
  kNeverReturns,  // policy wait: one rank dies and nobody takes its place: it is named in time
  kDaemonDies,    // of every job: one daemon of the rack dies; every worker is told which
  kDaemonSilent,  // the same, but nothing closes
  kRacksCut,      // lanes between the daemons of two racks are reset: one of them is named
};
const char* ToString(Fate fate);

struct JobScript {
  std::string name;
  std::uint32_t world_size = 1;
  std::uint32_t racks = 1;                         // that it spans, with equal parts of its ranks
  std::string plan;                                // by which they exchange
  std::vector<std::vector<oracle::RackSum>> sums;  // racks > 1: [key][chunk], in the plan's order
  std::uint32_t chunk_bytes = 256;
  std::uint32_t slots_per_lane = 1;
  bool wait_policy = false;  // lanes may break and come back
  DurationNs wait_timeout = 60 * kSecond;
  bool restart = false;          // processes may die, and others take their places
  std::uint32_t crashes = 0;     // how many do
  bool apply_iteration = false;  // then all keys have the same operation in a round
  double clip_norm = 0.0;
  bool skip_nonfinite = false;
  std::vector<TroubleScript> troubles;  // [iteration - 1], with apply_iteration
  bool lockstep = false;                // all keys of t before any key of t+1
  std::uint32_t cancel_chance = 0;      // per million pushes: try to withdraw it at once
  std::uint32_t iterations = 1;
  std::vector<KeyScript> keys;
  Fate fate = Fate::kCompletes;
  std::uint32_t culprit = 0;            // the rank that breaks it
  std::uint32_t culprit_iteration = 1;  // when it does, in its own iterations of the first key

  bool disagrees() const {
    return fate == Fate::kKeysDiffer || fate == Fate::kHyperParametersDiffer ||
           fate == Fate::kRootsDiffer;
  }
  bool IsIn(TroubleScript::Kind kind, std::uint32_t key, std::uint64_t iteration,
            std::uint32_t rank) const {
    if (troubles.empty()) return false;
    const TroubleScript& trouble = troubles[iteration - 1];
    return trouble.kind == kind && trouble.key == key && trouble.rank == rank;
  }
  bool loses_daemon() const { return fate == Fate::kDaemonDies || fate == Fate::kDaemonSilent; }
};

// Draws a job; `fate` decides whether and how it fails.
JobScript DrawJob(SeededRandom& random, std::string name, Fate fate);

// The racks that a job spans, and how they exchange.
struct RackPlanScript {
  std::uint32_t racks = 0;  // that have ranks
  const plan::Topology* topology = nullptr;
  std::string plan;  // as the job asks for it
  const plan::Forest* forest = nullptr;
  std::uint32_t core_count = 0;  // of each rack
  oracle::Order order{};         // in which the oracle sums
};
JobScript DrawRackJob(SeededRandom& random, std::string name, Fate fate,
                      const RackPlanScript& racks);
// script_oracle.cc: key.expected and what rounds are skipped. REQUIRES: all else is drawn.
void ComputeExpected(JobScript& job);
std::string Describe(const JobScript& job);

// What rank `rank` pushes in that round, given the parameters that it read.
std::vector<float> GradientOf(const JobScript& job, std::uint32_t key, std::uint64_t iteration,
                              std::uint32_t rank, const std::vector<float>& parameters);
// What the root of a broadcast sends.
std::vector<float> BroadcastOf(const JobScript& job, std::uint32_t key, std::uint64_t iteration);

}  // namespace phub::sim
