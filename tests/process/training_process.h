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
// All ranks of a job. `options.rank` is ignored; the parameters go to FOLDER/<rank> if there is a
// folder.
std::vector<Process> StartTrainers(TrainerProcessOptions options, const std::string& folder = "");
// Its last line, without what the library logged before.
std::string VerdictOf(const Process& trainer);
// How many iterations the process says that it has completed.
std::uint64_t IterationsOf(const Process& trainer);
// False if it ends before it has completed so many, or does not in time.
bool WaitForIteration(Process& trainer, std::uint64_t iteration, DurationNs timeout);

}  // namespace phub::process
