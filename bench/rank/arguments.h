// The command line common to all rank programs of the bench.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Only files that add options include the parser (CLI11), since its headers take 8 CPU seconds to
// compile.
namespace CLI {
class App;
}  // namespace CLI

namespace phub::bench {

enum class Work : std::uint8_t {
  kUpdate,     // in: gradients; out: parameters updated by SGD with momentum
  kAllreduce,  // in: gradients; out: their sum in this worker's own buffer
};
enum class Type : std::uint8_t { kF32, kF16, kBf16 };
// Whether gradients and results are in memory from the library under test or in the worker's own
// memory (always the worker's, for a system without memory of its own).
enum class Memory : std::uint8_t { kLibrary, kUser };

// What a rank times: exchanges, or iterations of a job that computes (training_job.h).
enum class Schedule : std::uint8_t {
  kExchange,  // nothing is computed
  kCompute,   // nothing is exchanged
  kSerial,    // first backward, then the exchange, then forward
  kOverlap,   // each layer is exchanged while others are computed
};
enum class Compute : std::uint8_t { kMemory, kDevice };

struct RankArguments {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::vector<std::uint64_t> sizes;  // elements of each tensor, in forward order
  Type type = Type::kF32;            // the type of gradients and results
  Work work = Work::kUpdate;
  Memory memory = Memory::kLibrary;
  std::uint32_t exchanges = 10;  // timed exchanges
  std::uint32_t warmup = 2;
  Schedule schedule = Schedule::kExchange;
  Compute compute = Compute::kMemory;
  std::uint32_t compute_passes = 1;       // kMemory: passes over each layer
  std::uint32_t device_us = 0;            // kDevice: device time of an iteration
  std::vector<std::int32_t> daemon_pids;  // the daemons whose CPU time rank 0 reads
  // If not empty: use link_drain.h's echo before each timed exchange.
  std::string drain;
  bool snapshots = false;  // the harness reads counters around the timed exchanges (snapshots.h)
  std::string out;         // the output file (JSON)

  std::uint64_t element_count() const;
};

// Adds the options above. `sizes` is valid after the command line was parsed.
void AddRankOptions(CLI::App& app, RankArguments& arguments);

// Exits with status 1 after printing "rank N: " and the reason to standard error.
[[noreturn]] void Fail(const std::string& reason);
void SetRankForMessages(std::uint32_t rank);

}  // namespace phub::bench
