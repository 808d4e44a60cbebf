#include "tests/process/training_process.h"

#include <fmt/format.h>
#include <time.h>

#include <cstdlib>

namespace phub::process {

Process StartTrainer(const TrainerProcessOptions& options) {
  std::vector<std::string> arguments = {"--endpoint",   options.endpoint,
                                        "--job",        options.job,
                                        "--rank",       std::to_string(options.rank),
                                        "--world-size", std::to_string(options.world_size),
                                        "--iterations", std::to_string(options.iterations)};
  arguments.insert(arguments.end(), options.more.begin(), options.more.end());
  return Process::Start(PHUB_TEST_TRAINER, arguments, options.environment);
}

std::vector<Process> StartTrainers(TrainerProcessOptions options, const std::string& folder) {
  const std::vector<std::string> more = options.more;
  std::vector<Process> trainers;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    options.more = more;
    if (!folder.empty())
      options.more.insert(options.more.end(),
                          {"--out", fmt::format("{}/{}", folder, options.rank)});
    trainers.push_back(StartTrainer(options));
  }
  return trainers;
}

std::string VerdictOf(const Process& trainer) {
  const std::string said = trainer.StandardError();
  const std::size_t last = said.rfind("\nrank ");
  return last == std::string::npos ? said : said.substr(last + 1);
}

std::uint64_t IterationsOf(const Process& trainer) {
  const std::string output = trainer.StandardOutput();
  const std::size_t last = output.rfind("iteration ");
  if (last == std::string::npos) return 0;
  return std::strtoull(output.c_str() + last + sizeof "iteration " - 1, nullptr, 10);
}

bool WaitForIteration(Process& trainer, std::uint64_t iteration, DurationNs timeout) {
  const SystemClock clock;
  const TimeNs deadline = clock.Now() + timeout;
  for (;;) {
    const bool running = trainer.IsRunning();
    if (IterationsOf(trainer) >= iteration) return true;
    if (!running || clock.Now() >= deadline) return false;
    const timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace phub::process
