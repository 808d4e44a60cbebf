// The option `sum` of a job: how gradients of floating-point types are summed.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/simd/kernels.h"
#include "phub/v1/session.pb.h"
#include "server/control/jobs/job.h"

namespace phub::server {

// Sets settings.sum_block. REQUIRES: the other settings are set.
absl::Status ReadSumOptions(const std::string& job, const v1::JobOptions& options,
                            JobSettings& settings);
const char* SumName(const JobSettings& settings);  // "float", "fixed"
// Empty if both are equal; otherwise "sum fixed, but node5 created it with float".
std::string DifferenceInSums(const JobSettings& theirs, const JobSettings& ours,
                             const std::string& creator);

// What is wrong with a key in a job with sum=fixed; empty: nothing.
std::string WhyNotSummedFixed(ElementType type, KeyMovement movement, simd::Reduction operation);

}  // namespace phub::server
