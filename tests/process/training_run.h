// A phub-digits job of several processes that may be killed and restarted while they train.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/process/process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {

struct TrainingOptions {
  std::vector<std::string> endpoints;  // one per rack; each rack has the same number of ranks
  std::string job;
  std::string transport = "auto";
  std::uint32_t world_size = 3;
  std::uint64_t iterations = 5000;  // of 4 digits per rank, several per millisecond
  bool restart = true;
  std::string plan = {};  // not empty: the job spans racks
  // The file with the expected parameters. If empty, they are the serial run's. The serial run does
  // not know the order of sums of more than two racks; there, all ranks must agree.
  std::string expected = {};
};

class TrainingRun {
 public:
  explicit TrainingRun(TrainingOptions options);  // starts all ranks

  std::uint32_t world_size() const { return options_.world_size; }
  Process& worker(std::uint32_t rank) { return workers_[rank]; }
  // Kills the rank's process with SIGKILL and starts another one in its place.
  void KillAndRestart(std::uint32_t rank);
  // Stops the rank's process with SIGSTOP and starts another one in its place. The stopped process
  // is returned to the caller and does not learn of it.
  Process StopAndReplace(std::uint32_t rank);
  // Rank 0's reported progress, in tenths.
  std::uint32_t Tenths() const;
  bool AnyEnded();
  // The number of restarted processes that resumed the previous process's work after the first
  // iteration.
  std::uint32_t resumed_count() const { return resumed_count_; }

  // Waits for all ranks. Returns an empty string if all succeeded with the expected bits, or the
  // problem.
  std::string Finish(DurationNs timeout);
  // The file with the rank's parameters. It exists as long as this object does.
  std::string SavedBy(std::uint32_t rank) const;

 private:
  void StartWorker(std::uint32_t rank);
  void Count(const Process& ended);
  std::string Expected() const;

  const TrainingOptions options_;
  TemporaryFolder folder_;
  std::vector<Process> workers_;  // by rank
  std::uint32_t tenths_ = 0;      // the progress of rank 0's earlier processes
  std::uint32_t resumed_count_ = 0;
};

}  // namespace phub::process
