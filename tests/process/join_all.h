// Several ranks of a job in one thread.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "phub/client.h"

namespace phub::process {

// Joins all ranks of a job, in their order. Fewer: the test has failed.
inline std::vector<Job> JoinAll(const std::string& endpoint, JobOptions options) {
  std::vector<Job> jobs;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    auto session = Connect(endpoint);
    EXPECT_TRUE(session.ok()) << ToString(session.status());
    if (!session.ok()) break;
    auto job = session->Join(options);
    EXPECT_TRUE(job.ok()) << ToString(job.status());
    if (!job.ok()) break;
    jobs.push_back(*std::move(job));
  }
  return jobs;
}

}  // namespace phub::process
