// Checks the job options in a join request. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/jobs/job.h"

namespace phub::server {

// The newest version that the client and this daemon support. FAILED_PRECONDITION if no version is.
absl::StatusOr<std::uint32_t> ChooseProtocolVersion(const v1::JoinRequest& request,
                                                    const std::string& daemon_version);

// Checks names, rank and options on their own, without comparing them to existing jobs.
// `daemon_cores`: the core loops of each daemon of the rack, already checked.
absl::StatusOr<JobSettings> CheckJoin(const v1::JoinRequest& request,
                                      const ControlOptions& defaults,
                                      const std::vector<std::uint32_t>& daemon_cores);
// The same for a job that a daemon of another rack has opened or requests. No rank joins with the
// request, and the settings are those of this rack's part of the job.
absl::StatusOr<JobSettings> CheckOpen(const v1::JoinRequest& request,
                                      const ControlOptions& defaults,
                                      const std::vector<std::uint32_t>& daemon_cores);

// "chunk_bytes 32768, but rank 0 (node1) created it with 65536"; empty if they are the same.
std::string DifferenceInSettings(const JobSettings& theirs, const JobSettings& ours,
                                 const std::string& creator);

// The name of JobOptions.apply: "chunk" or "iteration".
const char* ApplyName(const JobSettings& settings);

ShardConfig MakeShardConfig(const JobSettings& settings, Incarnation incarnation);

}  // namespace phub::server
