// Samples for phubctl top: a rack's counters at one moment, and their growth between two samples.
// One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/cli.h"
#include "client/cli/rack.h"
#include "common/base/clock.h"
#include "phub/v1/admin.pb.h"

namespace phub::client::cli {

// Counters as read. They only grow, unless the daemon or the job was restarted.
struct RankFigures {
  std::string host;
  std::uint64_t rounds_last = 0;
  std::uint64_t straggler_wait_ns = 0;
};
struct JobFigures {
  std::string state;
  std::uint32_t world_size = 0;
  std::uint32_t live = 0;
  std::uint64_t memory_bytes = 0;  // sum over all daemons
  std::uint64_t gradient_bytes = 0;
  std::uint64_t reply_bytes = 0;
  std::uint64_t rounds = 0;
  v1::JobInfo info;  // from the daemon that is furthest ahead
  std::map<std::uint32_t, RankFigures> ranks;
};
struct TenantFigures {
  std::uint64_t jobs = 0;
  std::uint64_t live_workers = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_quota_bytes = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t reply_bytes = 0;
};
struct DaemonFigures {
  grpc::Status status;
  v1::ServerInfo server;
  std::vector<std::uint64_t> busy_ns;  // [core]
  std::uint64_t gradient_bytes = 0;
  std::uint64_t reply_bytes = 0;
};
using TopJobName = std::pair<std::string, std::string>;  // tenant, job

struct TopSample {
  TimeNs taken_at = 0;
  std::map<std::string, DaemonFigures> daemons;  // by endpoint
  std::map<std::string, TenantFigures> tenants;
  std::map<TopJobName, JobFigures> jobs;
};

// Asks every daemon of the rack. Fails only if the daemon in `options` does not answer.
grpc::Status TakeTopSample(const Options& options, const Clock& clock, TopSample& sample);

// Growth between two readings, per second; negative: not known.
double PerSecond(std::uint64_t before, std::uint64_t after, DurationNs elapsed);

// The rank that a job's rounds waited for longest since the previous sample.
struct Straggler {
  bool known = false;
  std::uint32_t rank = 0;
  std::string host;
  double share = 0;        // share of the rounds in which it was last
  DurationNs late_by = 0;  // mean delay in those rounds
};
Straggler FindStraggler(const JobFigures& before, const JobFigures& after);

}  // namespace phub::client::cli
