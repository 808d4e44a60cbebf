// Several ranks of a job in one thread.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "phub/client.h"

namespace phub::process {

// Joins all ranks of a job, in their order, an equal share of them at each endpoint. Fewer: the
// test has failed.
inline std::vector<Job> JoinAll(const std::vector<std::string>& endpoints, JobOptions options) {
  const std::size_t share = options.world_size / endpoints.size();
  std::vector<Job> jobs;
  for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
    auto session = Connect(endpoints[options.rank / share]);
    EXPECT_TRUE(session.ok()) << ToString(session.status());
    if (!session.ok()) break;
    auto job = session->Join(options);
    EXPECT_TRUE(job.ok()) << ToString(job.status());
    if (!job.ok()) break;
    jobs.push_back(*std::move(job));
  }
  return jobs;
}
inline std::vector<Job> JoinAll(const std::string& endpoint, JobOptions options) {
  return JoinAll(std::vector{endpoint}, std::move(options));
}

}  // namespace phub::process
