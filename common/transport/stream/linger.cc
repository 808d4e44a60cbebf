#include "common/transport/stream/linger.h"

#include "common/base/check.h"

namespace phub::transport {
namespace {

// Data counts as a flow after this multiple of the bytes to wait for; then its rate is known, too.
constexpr std::size_t kFlowFactor = 4;
// The rate is measured over about this multiple of those bytes, because links change.
constexpr std::size_t kMemoryFactor = 16;
// A timer is late by its slack of 50 us and a context switch, so shorter waits are not worth it.
constexpr DurationNs kShortest = 100 * kMicrosecond;
// Limit of the delay that lingering may add to other messages.
constexpr DurationNs kLongest = 4 * kMillisecond;

}  // namespace

void Linger::Received(std::size_t bytes, TimeNs now) {
  if (bytes == 0) return;
  if (flow_bytes_ == 0) flow_since_ = now;
  flow_bytes_ += bytes;
  came_ = true;
  if (flow_bytes_ > kMemoryFactor * bytes_) {
    flow_bytes_ /= 2;
    flow_since_ += (now - flow_since_) / 2;
  }
}

DurationNs Linger::Take(TimeNs now, bool flows) {
  if (!came_) return 0;
  came_ = false;
  if (!flows) flow_bytes_ = 0;
  if (bytes_ == 0 || flow_bytes_ < kFlowFactor * bytes_) return 0;
  PHUB_DCHECK(now >= flow_since_, "now={} since={}", now, flow_since_);
  const double share = static_cast<double>(bytes_) / static_cast<double>(flow_bytes_);
  const double wait_ns = share * static_cast<double>(now - flow_since_);
  if (wait_ns < static_cast<double>(kShortest)) return 0;
  return wait_ns < static_cast<double>(kLongest) ? static_cast<DurationNs>(wait_ns) : kLongest;
}

}  // namespace phub::transport
