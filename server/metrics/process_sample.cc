#include "server/metrics/process_sample.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "common/base/log.h"

namespace phub::server {
namespace {

DurationNs ToDuration(const timeval& time) {
  return time.tv_sec * kSecond + time.tv_usec * kMicrosecond;
}

}  // namespace

ProcessSample ReadProcessSample() {
  ProcessSample sample;
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    sample.cpu_time = ToDuration(usage.ru_utime) + ToDuration(usage.ru_stime);
  }
  std::uint64_t total_pages = 0, resident_pages = 0;
  if (std::ifstream("/proc/self/statm") >> total_pages >> resident_pages) {
    sample.resident_bytes = resident_pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  }
  std::error_code error;
  const std::filesystem::directory_iterator descriptors("/proc/self/fd", error);
  if (!error) {
    sample.open_descriptors = static_cast<std::uint64_t>(
        std::distance(std::filesystem::begin(descriptors), std::filesystem::end(descriptors)));
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) sample.descriptors_max = limit.rlim_cur;
  sample.log_lines_dropped = DroppedLogLines();
  return sample;
}

}  // namespace phub::server
