// A phub-digits job of several processes that may be killed and started anew while they train.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/process/process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {

struct TrainingOptions {
  std::vector<std::string> endpoints;  // of racks: one each, ranks are dealt to them in equal parts
  std::string job;
  std::string transport = "auto";
  std::uint32_t world_size = 3;
  std::uint64_t iterations = 5000;  // of 4 digits per rank: several of them in a millisecond
  bool restart = true;
  std::string plan = {};  // not empty: the job spans racks
  // Where parameters lie that it must come to. Empty: what the serial run comes to; of more than
  // two racks, of which it does not know the order of sums, that all ranks come to the same.
  std::string expected = {};
};

class TrainingRun {
 public:
  explicit TrainingRun(TrainingOptions options);  // starts all ranks

  std::uint32_t world_size() const { return options_.world_size; }
  Process& worker(std::uint32_t rank) { return workers_[rank]; }
  // Kills the rank's process, with SIGKILL, and starts another in its place.
  void KillAndRestart(std::uint32_t rank);
  // Stops the rank's process, with SIGSTOP, and starts another in its place. The zombie is told
  // nothing and is left to the caller.
  Process StopAndReplace(std::uint32_t rank);
  // How far rank 0 says to be, in tenths.
  std::uint32_t Tenths() const;
  bool AnyEnded();
  // How many of the processes that were started anew took up the work of the one before, at another
  // iteration than the first.
  std::uint32_t resumed_count() const { return resumed_count_; }

  // Waits for all ranks. Empty if all of them ended well and with the bits that are expected, else
  // what is wrong.
  std::string Finish(DurationNs timeout);
  // Where the rank leaves its parameters, as long as this object is there.
  std::string SavedBy(std::uint32_t rank) const;

 private:
  void StartWorker(std::uint32_t rank);
  void Count(const Process& ended);
  std::string Expected() const;

  const TrainingOptions options_;
  TemporaryFolder folder_;
  std::vector<Process> workers_;  // [rank]
  std::uint32_t tenths_ = 0;      // of processes of rank 0 that are no more
  std::uint32_t resumed_count_ = 0;
};

}  // namespace phub::process
