#include "common/base/shortage.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/errno_text.h"
#include "common/base/memory_limit.h"
#include "common/base/status_text.h"

namespace phub {
namespace {

std::optional<std::uint64_t> SoftLimit(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

// The first number of a file; nothing without one, for example without a free descriptor.
std::optional<std::uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

std::string ValueOf(const std::optional<std::uint64_t>& value) {
  return value ? fmt::format(" (now {})", *value) : "";
}

// The control group that limits this process's threads most closely.
std::optional<std::uint64_t> GroupThreadLimit() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers != "pids") continue;
    const std::string mount = controllers.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
    for (std::string group = line.substr(second + 1);; group = group.substr(0, group.rfind('/'))) {
      while (group.ends_with('/')) group.pop_back();
      if (const auto limit = ReadNumber(mount + group + "/pids.max")) return limit;
      if (group.empty()) break;
    }
  }
  return std::nullopt;
}

std::uint64_t MapCount() {
  std::ifstream maps("/proc/self/maps");
  std::uint64_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

std::string OpenFilesAdvice() {
  return fmt::format(
      "this process may have {} open files (RLIMIT_NOFILE); raise it with ulimit -n, LimitNOFILE= "
      "(systemd) or --ulimit nofile= (docker), or close files",
      SoftLimit(RLIMIT_NOFILE).value_or(0));
}

}  // namespace

bool IsDescriptorShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOSPC || error == ENOMEM ||
         error == ENOBUFS;
}

std::string DescriptorErrorText(int error) {
  const std::string text = ErrnoText(error);
  switch (error) {
    case EMFILE: return fmt::format("{}: {}", text, OpenFilesAdvice());
    case ENFILE:
      return fmt::format(
          "{}: the host's limit of open files is reached; raise sysctl fs.file-max{}", text,
          ValueOf(ReadNumber("/proc/sys/fs/file-max")));
    case ENOSPC:
      return fmt::format(
          "{}: this user watches too many descriptors; raise sysctl fs.epoll.max_user_watches{}",
          text, ValueOf(ReadNumber("/proc/sys/fs/epoll/max_user_watches")));
    case ENOMEM:
    case ENOBUFS: return fmt::format("{}: the kernel is out of memory; free memory", text);
    default: return text;
  }
}

std::string MemoryErrorText(int error) {
  const std::string text = ErrnoText(error);
  if (error == EMFILE || error == ENFILE) return DescriptorErrorText(error);
  if (error != ENOMEM && error != EAGAIN && error != ENOSPC) return text;
  const auto maps_max = ReadNumber("/proc/sys/vm/max_map_count");
  const std::uint64_t maps = MapCount();
  // A thread's stack takes two; close to the limit it is the likely cause.
  if (maps_max && maps + 8 >= *maps_max) {
    return fmt::format(
        "{}: this process has {} memory maps; the limit is {}; raise sysctl vm.max_map_count", text,
        maps, *maps_max);
  }
  if (const auto space = SoftLimit(RLIMIT_AS)) {
    return fmt::format(
        "{}: this process may have {} bytes of address space (RLIMIT_AS); raise it with ulimit -v, "
        "or free memory",
        text, *space);
  }
  const MemoryLimit limit = ReadMemoryLimit();
  return fmt::format("{}: the limit is {} bytes ({}); free memory, or raise the limit", text,
                     limit.bytes, limit.source);
}

std::string ThreadErrorText(int error) {
  const std::string text = ErrnoText(error);
  if (error != EAGAIN && error != ENOMEM) return text;
  std::string limits;
  const auto add = [&](const char* name, const std::optional<std::uint64_t>& value) {
    if (value) limits += fmt::format("{}{} is {}", limits.empty() ? "" : ", ", name, *value);
  };
  add("RLIMIT_NPROC (ulimit -u)", SoftLimit(RLIMIT_NPROC));
  add("pids.max of the control group (TasksMax= of systemd, --pids-limit of docker)",
      GroupThreadLimit());
  add("sysctl kernel.threads-max", ReadNumber("/proc/sys/kernel/threads-max"));
  add("RLIMIT_AS (ulimit -v)", SoftLimit(RLIMIT_AS));
  return fmt::format("{}: a limit of threads or memory is reached; raise it, or end threads: {}",
                     text, limits.empty() ? "no limit is known" : limits);
}

absl::Status DescriptorShortage(std::string_view action, int error) {
  return absl::ResourceExhaustedError(
      fmt::format("cannot {}: {}", action, DescriptorErrorText(error)));
}

absl::Status MemoryShortage(std::string_view action, int error) {
  return absl::ResourceExhaustedError(fmt::format("cannot {}: {}", action, MemoryErrorText(error)));
}

absl::Status PassedDescriptorShortage(std::string_view action) {
  return absl::ResourceExhaustedError(
      fmt::format("cannot {}: the daemon passed descriptors that did not arrive, so this process "
                  "probably has too many: {}",
                  action, OpenFilesAdvice()));
}

absl::StatusOr<Descriptor> MakeEpoll() {
  Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return DescriptorShortage("create an epoll", errno);
  return epoll;
}

absl::Status StartThread(std::thread& thread, std::string_view name, std::function<void()> body) {
  PHUB_CHECK(!thread.joinable(), "thread={}", name);
  try {
    thread = std::thread(std::move(body));
    return absl::OkStatus();
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        fmt::format("cannot start the thread {}: {}", name, ThreadErrorText(error.code().value())));
  }
}

absl::Status CheckRoom(std::size_t descriptor_count, std::size_t thread_count,
                       std::string_view purpose) {
  std::vector<Descriptor> descriptors;
  for (std::size_t i = 0; i < descriptor_count; ++i) {
    descriptors.emplace_back(eventfd(0, EFD_CLOEXEC));
    if (descriptors.back()) continue;
    const int error = errno;
    descriptors.clear();  // describing the error needs one
    return absl::ResourceExhaustedError(
        fmt::format("{} needs {} free file descriptors, but only {} are free: {}", purpose,
                    descriptor_count, i, DescriptorErrorText(error)));
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::vector<std::thread> threads(thread_count);
  std::size_t started = 0;
  absl::Status status;
  for (; started < thread_count && status.ok(); ++started) {
    status = StartThread(threads[started], "room", [&] {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return over; });
    });
  }
  {
    const std::lock_guard lock(mutex);
    over = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
  if (status.ok()) return status;
  return absl::ResourceExhaustedError(
      fmt::format("{} needs {} threads, but only {} can be started: {}", purpose, thread_count,
                  started - 1, MessageOf(status)));
}

}  // namespace phub
