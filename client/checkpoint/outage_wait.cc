#include "client/checkpoint/outage_wait.h"

#include <thread>
#include <utility>

#include "common/base/random.h"
#include "common/base/shortage.h"
#include "common/rpc/outage.h"

namespace phub::client {
namespace {

constexpr DurationNs kProgressInterval = 50 * kMillisecond;
constexpr std::chrono::seconds kReportInterval{10};

}  // namespace

void OutageWait::Report(const absl::Status& error, Clock::time_point now) {
  if (!options_.waiting || (reported_ && now - *reported_ < kReportInterval)) return;
  reported_ = now;
  options_.waiting(error, std::chrono::nanoseconds(now - *begun_).count());
}

bool OutageWait::Pause(absl::Status& status, const TransferProgress& progress) {
  if (!rpc::IsOutage(status)) return false;
  if (absl::Status room = CheckRoom(rpc::kDescriptorsOfCall, 0, "a call to phubd"); !room.ok()) {
    status = std::move(room);
    return false;
  }
  const Clock::time_point now = Clock::now();
  if (!begun_) begun_ = now;
  Report(status, now);
  SystemRandom random;
  const DurationNs pause = backoff_.Next(random);
  for (DurationNs waited = 0; waited < pause; waited += kProgressInterval) {
    if (options_.progress && !options_.progress(progress)) return false;
    std::this_thread::sleep_for(std::chrono::nanoseconds(kProgressInterval));
  }
  return options_.outage_timeout < 0 ||
         Clock::now() - *begun_ < std::chrono::nanoseconds(options_.outage_timeout);
}

}  // namespace phub::client
