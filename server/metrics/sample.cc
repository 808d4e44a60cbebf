#include "server/metrics/sample.h"

#include <numeric>

namespace phub::server {

void WorkTotals::Add(const ShardMetrics& metrics) {
  AddWork(metrics);
  nonfinite_sums += metrics.nonfinite_sums.Get();
  nonfinite_gradients += metrics.nonfinite_gradients.Get();
}

void WorkTotals::AddWork(const WorkMetrics& metrics) {
  gradients += metrics.gradients.Get();
  gradient_bytes += metrics.gradient_bytes.Get();
  reply_bytes += metrics.reply_bytes.Get();
  straggler_wait_ns += metrics.straggler_wait_ns.Get();
  round_duration_ns += metrics.round_duration_ns.Get();
  for (std::size_t i = 0; i < kRoundDurationBuckets; ++i) {
    round_duration_buckets[i] += metrics.round_duration_buckets[i].Get();
  }
}

void WorkTotals::Add(const WorkTotals& other) {
  gradients += other.gradients;
  gradient_bytes += other.gradient_bytes;
  reply_bytes += other.reply_bytes;
  nonfinite_sums += other.nonfinite_sums;
  nonfinite_gradients += other.nonfinite_gradients;
  straggler_wait_ns += other.straggler_wait_ns;
  round_duration_ns += other.round_duration_ns;
  for (std::size_t i = 0; i < kRoundDurationBuckets; ++i) {
    round_duration_buckets[i] += other.round_duration_buckets[i];
  }
}

std::uint64_t WorkTotals::rounds() const {
  return std::accumulate(round_duration_buckets.begin(), round_duration_buckets.end(),
                         std::uint64_t{0});
}

}  // namespace phub::server
