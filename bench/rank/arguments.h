// The command line that every rank program of the bench understands, whatever system it drives.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace phub::bench {

enum class Work : std::uint8_t {
  kUpdate,     // gradients in, parameters updated by SGD with momentum out
  kAllreduce,  // gradients in, their sum in this worker's own buffer out
};
enum class Type : std::uint8_t { kF32, kF16, kBf16 };
// Where gradients and results lie: in memory that the library under test gave, or in the worker's
// own (for a system without memory of its own: always the worker's).
enum class Memory : std::uint8_t { kLibrary, kUser };

// What is timed: exchanges, or iterations of a job that computes (training_job.h).
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
  Type type = Type::kF32;            // of gradients and results
  Work work = Work::kUpdate;
  Memory memory = Memory::kLibrary;
  std::uint32_t exchanges = 10;  // that are timed
  std::uint32_t warmup = 2;
  Schedule schedule = Schedule::kExchange;
  Compute compute = Compute::kMemory;
  std::uint32_t compute_passes = 1;       // kMemory: over each layer
  std::uint32_t device_us = 0;            // kDevice: of an iteration
  std::vector<std::int32_t> daemon_pids;  // rank 0 reads how much CPU they take, too
  // Not empty: before each exchange that is timed, link_drain.h's echo is used.
  std::string drain;
  std::string out;  // the file to be written, JSON

  std::uint64_t element_count() const;
};

// Adds the options above. `sizes` is parsed when the command line is.
void AddRankOptions(CLI::App& app, RankArguments& arguments);

// Ends the process with status 1 and the reason on standard error, after "rank N: ".
[[noreturn]] void Fail(const std::string& reason);
void SetRankForMessages(std::uint32_t rank);

}  // namespace phub::bench
