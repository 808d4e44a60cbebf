// Checks what a worker says of the job that it joins. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/jobs/job.h"

namespace phub::server {

// Whether the client's versions and ours overlap; FAILED_PRECONDITION names both if not.
absl::StatusOr<std::uint32_t> ChooseProtocolVersion(const v1::JoinRequest& request,
                                                    const std::string& daemon_version);

// Names, rank and options by themselves, without regard to what is there. `daemon_cores`: of the
// rack, checked already.
absl::StatusOr<JobSettings> CheckJoin(const v1::JoinRequest& request,
                                      const ControlOptions& defaults,
                                      const std::vector<std::uint32_t>& daemon_cores);
// The same of a job that another rack's daemon has opened or asks for: no rank comes with it, and
// what is read is this rack's part of it.
absl::StatusOr<JobSettings> CheckOpen(const v1::JoinRequest& request,
                                      const ControlOptions& defaults,
                                      const std::vector<std::uint32_t>& daemon_cores);

// "chunk_bytes 32768 (rank 0 (node1) said 65536)", or empty if they are the same.
std::string DifferenceInSettings(const JobSettings& theirs, const JobSettings& ours,
                                 const std::string& creator);

// Of JobOptions.apply: "chunk" or "iteration".
const char* ApplyName(const JobSettings& settings);

ShardConfig MakeShardConfig(const JobSettings& settings, Incarnation incarnation);

}  // namespace phub::server
