// The behaviour of a simulated job, drawn from a seed, and its expected results: the oracle.
//
// There are two kinds of gradients, which detect different errors:
//   lanes  Rank w pushes v in every element i with i % world_size == w, otherwise 0, and the key is
//          a plain sum. A correct result is v everywhere, exact in any order. 0 shows a lost
//          worker, and 2v a worker that was counted twice. v depends on key and iteration, so a
//          stale or misrouted chunk shows too.
//   hash   Gradients are a hash of the parameter bytes that the rank read. If a rank reads a
//          mixture of two versions, it pushes different gradients, and every later version
//          differs. The same holds for a sum in the wrong order (for a job that spans racks, not
//          its plan's order). Expected parameters are computed serially, one element at a time,
//          before the run.
//
// Keys with other movements than all-reduce are checked in the same way: a rank reads and hashes
// only the parts that it receives. Values that move as bytes are random bits, including NaNs and
// denormal numbers, since they must arrive unchanged.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/chunk_map.h"
#include "common/base/clock.h"
#include "common/base/encoding.h"
#include "common/base/random.h"
#include "common/simd/kernels.h"
#include "common/wire/message.h"
#include "tests/support/rack_sum.h"

namespace phub::sim {

enum class GradientKind : std::uint8_t { kLanes, kHash };

struct RoundScript {
  wire::RoundOperation operation = wire::RoundOperation::kReduce;
  std::uint32_t root = 0;                  // for kAssign and kPoolMove
  wire::HyperParameters hyper_parameters;  // in force in this round
  bool skipped = false;                    // apply_iteration: set by the oracle
  // Pooled keys: the prefix of the key that the round covers, its reduction, and its type: f32, or
  // i32, which sums the bits of the same values.
  wire::PoolRound pool{};
  numeric::ElementType type = numeric::ElementType::kF32;
};

// apply_iteration: why an iteration must be skipped, if at all.
struct TroubleScript {
  enum class Kind : std::uint8_t { kNone, kAsks, kNonFinite } kind = Kind::kNone;
  std::uint32_t rank = 0, key = 0;
};

struct GroupScript {
  std::string name;
  std::vector<std::uint32_t> ranks;  // ascending
};
inline constexpr std::uint32_t kNoGroup = UINT32_MAX;

struct KeyScript {
  std::string name;
  std::uint32_t element_count = 0;  // that the daemons hold
  std::uint32_t batch = 0;          // keys are added in batches
  GradientKind gradients = GradientKind::kHash;
  simd::Optimizer optimizer = simd::Optimizer::kNone;
  bool mean = false;
  KeyMovement movement = KeyMovement::kAllReduce;
  std::uint32_t root = 0;                   // the movement's root, if it has one
  std::uint32_t group = kNoGroup;           // in JobScript::groups; else of the whole job
  bool collective = false;                  // outside iterations and checkpoints
  numeric::GradientEncoding encoding = {};  // of gradients on the wire; without error feedback
  bool pooled = false;                      // its rounds are kPool and kPoolMove
  // How many elements the daemons' key has for each float.
  std::uint32_t units() const { return pooled ? sizeof(float) : 1; }
  std::vector<RoundScript> rounds;           // by iteration - 1
  std::vector<std::vector<float>> expected;  // by iteration: parameters after it; [0] is zeros
  // By iteration and array: the optimizer's state. Empty before the first reduction.
  std::vector<std::vector<std::vector<float>>> expected_states;
};

// How the job is expected to end.
enum class Fate : std::uint8_t {
  kCompletes,     // despite any behaviour of the network
  kWorkerDies,    // policy fail: one rank dies; every survivor's error names it
  kWorkerSilent,  // the same without closed connections: only heartbeats show it
  kLaneBreaks,    // policy fail: one lane is reset; the job fails, and the error names its rank
  kKeysDiffer,    // one rank adds another key: the error names both ranks
  kHyperParametersDiffer,  // one rank sets another learning rate: the error names both ranks
  kRootsDiffer,            // one rank broadcasts from another root: the error names both ranks
  kNeverReturns,  // policy wait: one rank dies and is not replaced: the error names it in time
  kDaemonDies,    // for all jobs: one daemon of the rack dies; every worker's error names it
  kDaemonSilent,  // the same without closed connections
  kLanesCut,      // one rack with several daemons: what one rank and one daemon send each other on
                  // lanes is lost, in one direction or both; all ranks end with the same error
  kRacksCut,  // lanes between the daemons of two racks are reset: the error names one of the racks
};
const char* ToString(Fate fate);

struct JobScript {
  std::string name;
  std::uint32_t world_size = 1;
  std::uint32_t racks = 1;  // the number of racks that it spans, each with the same number of ranks
  std::string plan;         // the plan of the exchange between racks
  // Racks > 1: by key and chunk, in the plan's order. Empty for keys of groups inside a rack.
  std::vector<std::vector<oracle::RackSum>> sums;
  std::uint32_t chunk_bytes = 256;
  std::uint32_t slots_per_lane = 1;
  bool wait_policy = false;  // lanes may break and come back
  DurationNs wait_timeout = 60 * kSecond;
  bool restart = false;          // processes may die and be replaced
  std::uint32_t crashes = 0;     // the number of crashes
  bool apply_iteration = false;  // if true, keys of iterations have the same operation in a round
  double clip_norm = 0.0;
  bool skip_nonfinite = false;
  std::uint32_t sum_block = 0;          // sum=fixed: elements of a block; 0: sum=float
  std::vector<TroubleScript> troubles;  // by iteration - 1, with apply_iteration
  bool lockstep = false;                // all keys of t before any key of t+1
  std::uint32_t cancel_chance = 0;      // per million pushes: try to cancel the push at once
  std::uint32_t iterations = 1;
  // How often the last batch, of collective keys, is removed after all its rounds, and added again.
  std::uint32_t removals = 0;
  std::vector<KeyScript> keys;      // last those of groups
  std::vector<GroupScript> groups;  // each with one key, removed after all its rounds
  std::uint32_t groups_after = 1;   // they are added after that many batches of the job's keys
  Fate fate = Fate::kCompletes;
  std::uint32_t culprit = 0;            // the rank that causes the fate
  std::uint32_t culprit_iteration = 1;  // of its own, of the first key

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

// Draws a job; `fate` decides whether and how it fails. one_daemon: so it may have groups.
JobScript DrawJob(SeededRandom& random, std::string name, Fate fate, bool one_daemon = false);

// Draws groups and their keys (script_groups.cc). Takes a copy of the generator, like DrawSum().
// REQUIRES: everything else is drawn.
void DrawGroups(SeededRandom random, JobScript& job);
std::string DescribeGroups(const JobScript& job);  // for messages
// The racks with members, ascending.
std::vector<std::uint32_t> RacksOf(const JobScript& job, std::uint32_t group);
// The ranks that push the key.
std::vector<std::uint32_t> MembersOf(const JobScript& job, const KeyScript& key);

// Draws JobScript::sum_block. Takes a copy of the generator, so that the seed's other decisions do
// not change.
void DrawSum(SeededRandom random, JobScript& job);

// Draws KeyScript::encoding of an all-reduce, likewise. REQUIRES: JobScript::sum_block is drawn.
void DrawEncoding(SeededRandom random, const JobScript& job, KeyScript& key);
std::string DescribeKey(const KeyScript& key);  // for messages

// Makes some collective keys pooled. Takes a copy of the generator, like DrawSum(). REQUIRES: the
// keys and JobScript::sum_block are drawn.
void DrawPools(SeededRandom random, JobScript& job);
// Makes the key pooled and draws its rounds. members: the ranks that push it.
void MakePooled(SeededRandom& random, std::span<const std::uint32_t> members, KeyScript& key);
// A round of a pooled key: `parameters` after it, from what the root sent, or from the gradients of
// all ranks (script_pool.cc).
std::vector<float> MovePooled(const RoundScript& round, const std::vector<float>& sent,
                              std::vector<float> parameters);
std::vector<float> ReducePooled(const RoundScript& round,
                                const std::vector<std::vector<float>>& gradients,
                                std::vector<float> parameters);

// Draws which keys are pooled, and JobScript::removals. Takes a copy of the generator, so that the
// seed's other decisions do not change. REQUIRES: everything else is drawn.
void DrawPoolsAndRemovals(SeededRandom random, JobScript& job);

// The racks that a job spans, and how they exchange.
struct RackPlanScript {
  std::uint32_t racks = 0;  // racks with ranks
  const plan::Topology* topology = nullptr;
  std::string plan;  // the plan as the job requests it
  const plan::Forest* forest = nullptr;
  std::uint32_t core_count = 0;  // core loops in each rack
  bool one_daemon = false;       // in each rack, so jobs may have groups
  oracle::Order order{};         // the order in which the oracle sums
};
JobScript DrawRackJob(SeededRandom& random, std::string name, Fate fate,
                      const RackPlanScript& racks);
// Computes JobScript::sums (script_rack_sums.cc), except for groups of several racks: rack 0 plans
// these around what else is there. REQUIRES: the keys and groups are drawn.
void DrawSums(JobScript& job, const RackPlanScript& racks);
// Computes them for a group of several racks from rack 0's plan, and the expected results.
void SetGroupPlan(JobScript& job, std::uint32_t group, const RackPlanScript& racks,
                  const std::string& plan);
// Job::iteration() after all rounds: the reductions of the keys that are not collective.
std::uint64_t IterationsOf(const JobScript& job);
// The elements of a key that one rank pushes or receives, in the order of its memory.
std::vector<std::uint32_t> PushedBy(const JobScript& job, const KeyScript& key, std::uint32_t rank);
std::vector<std::uint32_t> ReceivedBy(const JobScript& job, const KeyScript& key,
                                      std::uint32_t rank);
// Those elements of `whole`.
std::vector<float> Pick(const std::vector<float>& whole,
                        const std::vector<std::uint32_t>& elements);
// Computes key.expected and the skipped rounds (script_oracle.cc). REQUIRES: everything else is
// drawn.
void ComputeExpected(JobScript& job);
// The same again for a key of a group.
void ComputeExpectedOf(JobScript& job, std::uint32_t key);
std::string Describe(const JobScript& job);

// The gradients that rank `rank` pushes in this round, given the parameters that it read. All
// elements of the key; only those that it pushes are used.
std::vector<float> GradientOf(const JobScript& job, std::uint32_t key, std::uint64_t iteration,
                              std::uint32_t rank, const std::vector<float>& parameters);
// The sum of a key's gradients in a job with sum=fixed (script_sum.cc).
std::vector<float> SumInFixedPoint(const JobScript& job, const KeyScript& key,
                                   const std::vector<std::vector<float>>& gradients);
// The values that the root of a broadcast sends.
std::vector<float> BroadcastOf(const JobScript& job, std::uint32_t key, std::uint64_t iteration);

}  // namespace phub::sim
