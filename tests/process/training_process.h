// process-trainer (trainer_main.cc): one rank of the tests' training job as a process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/process/process.h"

namespace phub::process {

struct TrainerProcessOptions {
  std::string endpoint;
  std::string job;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint64_t iterations = 100;
  std::vector<std::string> more = {};  // further options of the program
  std::vector<std::string> environment = {};
};
Process StartTrainer(const TrainerProcessOptions& options);
// Starts all ranks of a job. `options.rank` is ignored. If there is a folder, each rank writes its
// parameters to FOLDER/<rank>.
std::vector<Process> StartTrainers(TrainerProcessOptions options, const std::string& folder = "");
// The last line of its standard error, without the library's log lines.
std::string VerdictOf(const Process& trainer);
// The number of iterations that the process reports as complete.
std::uint64_t IterationsOf(const Process& trainer);
// Waits until the process has completed this many iterations. Returns false if it ends earlier or
// does not do so in time.
bool WaitForIteration(Process& trainer, std::uint64_t iteration, DurationNs timeout);

}  // namespace phub::process
