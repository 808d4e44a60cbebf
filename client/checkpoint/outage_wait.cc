#include "client/checkpoint/outage_wait.h"

#include <algorithm>
#include <thread>

#include "common/base/random.h"
#include "common/rpc/outage.h"

namespace phub::client {
namespace {

constexpr DurationNs kOutagePauseMin = 50 * kMillisecond;
constexpr DurationNs kOutagePauseMax = kSecond;
constexpr DurationNs kProgressInterval = 50 * kMillisecond;

}  // namespace

bool OutageWait::Pause(const absl::Status& status, const TransferProgress& progress) {
  if (!rpc::IsOutage(status)) return false;
  const Clock::time_point now = Clock::now();
  if (!begun_) {
    begun_ = now;
    pause_ = kOutagePauseMin;
  }
  // Random, since an outage hits all ranks at once.
  const DurationNs half = pause_ / 2;
  const DurationNs pause =
      half + static_cast<DurationNs>(SystemRandom().Next() % static_cast<std::uint64_t>(half));
  pause_ = std::min(2 * pause_, kOutagePauseMax);
  for (DurationNs waited = 0; waited < pause; waited += kProgressInterval) {
    if (options_.progress && !options_.progress(progress)) return false;
    std::this_thread::sleep_for(std::chrono::nanoseconds(kProgressInterval));
  }
  return options_.outage_timeout < 0 ||
         Clock::now() - *begun_ < std::chrono::nanoseconds(options_.outage_timeout);
}

}  // namespace phub::client
