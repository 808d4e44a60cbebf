#include "server/control/jobs/sum_options.h"

#include "common/aggregation/fixed_point.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

bool IsSummedFixed(ElementType type) {
  return (numeric::IsFloating(type) && type != ElementType::kF64) || type == ElementType::kI32;
}

}  // namespace

absl::Status ReadSumOptions(const std::string& job, const v1::JobOptions& options,
                            JobSettings& settings) {
  const auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(fmt::format("job {}: {}", job, what));
  };
  if (options.sum() < v1::SUM_UNSPECIFIED || options.sum() > v1::SUM_FIXED) {
    return refuse(fmt::format("sum has the unknown value {}; this daemon supports float and fixed",
                              static_cast<int>(options.sum())));
  }
  if (options.sum() != v1::SUM_FIXED) {
    if (options.sum_block() == 0) return absl::OkStatus();
    return refuse(fmt::format("sum_block is {}, but only sum=fixed has blocks; leave sum_block 0",
                              options.sum_block()));
  }
  using aggregation::kFixedBlockMax, aggregation::kFixedBlockMin, aggregation::kFixedRanksMax;
  const std::uint32_t block =
      options.sum_block() == 0 ? aggregation::kFixedBlockDefault : options.sum_block();
  if (block < kFixedBlockMin || block > kFixedBlockMax) {
    return refuse(fmt::format("sum_block is {}; it must be {} to {}, or 0 for the default, {}",
                              block, kFixedBlockMin, kFixedBlockMax,
                              aggregation::kFixedBlockDefault));
  }
  if (!settings.plan.empty()) {
    return refuse(
        "sum=fixed is not supported in jobs that span racks; leave `plan` empty, or use "
        "sum=float");
  }
  if (settings.world_size > kFixedRanksMax) {
    return refuse(
        fmt::format("sum=fixed supports at most {} ranks, but world_size is {}; use "
                    "sum=float",
                    kFixedRanksMax, settings.world_size));
  }
  settings.sum_block = block;
  return absl::OkStatus();
}

const char* SumName(const JobSettings& settings) {
  return settings.sum_block == 0 ? "float" : "fixed";
}

std::string DifferenceInSums(const JobSettings& theirs, const JobSettings& ours,
                             const std::string& creator) {
  if (theirs.sum_block == ours.sum_block) return {};
  if (theirs.sum_block == 0 || ours.sum_block == 0) {
    return fmt::format("sum {}, but {} created it with {}", SumName(theirs), creator,
                       SumName(ours));
  }
  return fmt::format("sum_block {}, but {} created it with {}", theirs.sum_block, creator,
                     ours.sum_block);
}

std::string WhyNotSummedFixed(ElementType type, KeyMovement movement, simd::Reduction operation) {
  if (MovesBytes(movement)) return {};
  if (!IsSummedFixed(type)) {
    return fmt::format(
        "the job has sum=fixed, which does not support {}, only f32, f16, bf16 and i32; add this "
        "key to a job with sum=float",
        numeric::ToString(type));
  }
  if (operation == simd::Reduction::kSum || operation == simd::Reduction::kMean) return {};
  return fmt::format(
      "the job has sum=fixed, which does not support operation {}, only sum and mean; add this key "
      "to a job with sum=float",
      simd::ToString(operation));
}

}  // namespace phub::server
