#include "tests/process/idle.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/support/wakeups.h"

namespace phub::process {
namespace {

constexpr DurationNs kWindow = 2 * kSecond;
constexpr int kWindows = 5;
constexpr std::uint64_t kWakeupsMax = 200 * static_cast<std::uint64_t>(kWindow / kSecond);
constexpr DurationNs kCpuTimeMax = kWindow / 4;

}  // namespace

::testing::AssertionResult IsIdle(const Process& process) {
  Sleep(300 * kMillisecond);  // what came before does not count
  std::uint64_t wakeups = 0;
  DurationNs time = 0;
  for (int i = 0; i < kWindows; ++i) {
    const std::uint64_t wakeups_before = WakeupsOf(process.pid());
    const DurationNs time_before = process.CpuTime();
    Sleep(kWindow);
    wakeups = WakeupsOf(process.pid()) - wakeups_before;
    time = process.CpuTime() - time_before;
    if (wakeups < kWakeupsMax && time < kCpuTimeMax) return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << fmt::format(
             "{} wake-ups and {:.3f} s of CPU time in the last {} s; the limits are {} and {:.3f}",
             wakeups, static_cast<double>(time) / kSecond, kWindow / kSecond, kWakeupsMax,
             static_cast<double>(kCpuTimeMax) / kSecond);
}

}  // namespace phub::process
