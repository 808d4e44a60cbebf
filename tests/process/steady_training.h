// A job in threads of the test that trains until it is asked to stop, and then must have the bits
// of an undisturbed job.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "phub/client.h"
#include "tests/process/trainer.h"

namespace phub::process {

class SteadyTraining {
 public:
  // Starts all ranks of `job`. endpoints: one per rack; each rack has the same number of ranks.
  // `pause`: after each iteration.
  SteadyTraining(std::vector<std::string> endpoints, const JobOptions& job,
                 DurationNs pause = 5 * kMillisecond);
  ~SteadyTraining() { last_ = 0; }  // a test that failed before Finish() does not train for ever

  std::uint64_t iteration() const { return iteration_; }  // complete at rank 0
  bool WaitFor(std::uint64_t iteration) const;
  // Waits that long. False if the job did not go on, in the last quarter of that time too.
  bool GoesOnFor(DurationNs time) const;
  // Asks all ranks to stop. Returns what went wrong, or an empty string.
  std::string Finish();

 private:
  Trained Train(const std::string& endpoint, const JobOptions& job);

  const std::vector<std::string> endpoints_;
  const JobOptions job_;
  const DurationNs pause_;
  std::atomic<std::uint64_t> iteration_{0};
  std::atomic<std::uint64_t> last_{UINT64_MAX};
  std::vector<std::future<Trained>> ranks_;
};

}  // namespace phub::process
