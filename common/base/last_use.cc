#include "common/base/last_use.h"

#include <fmt/format.h>
#include <sys/inotify.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "common/base/errno_text.h"

namespace phub {
namespace {

// Of memory without a name no event carries a name, so every event has this size.
constexpr std::size_t kEventBytes = sizeof(inotify_event);
constexpr std::size_t kEventsAtOnce = 256;

}  // namespace

absl::StatusOr<LastUse> LastUse::Create() {
  Descriptor inotify(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!inotify) {
    return absl::UnavailableError(fmt::format(
        "inotify_init1 failed: {}; fs.inotify.max_user_instances limits it", ErrnoText(errno)));
  }
  return LastUse(std::move(inotify));
}

absl::StatusOr<int> LastUse::Watch(const Descriptor& memfd) {
  const std::string path = fmt::format("/proc/self/fd/{}", memfd.get());
  const int number = inotify_add_watch(inotify_.get(), path.c_str(), IN_DELETE_SELF);
  if (number >= 0) return number;
  return absl::ResourceExhaustedError(fmt::format(
      "inotify_add_watch failed: {}; fs.inotify.max_user_watches limits it", ErrnoText(errno)));
}

bool LastUse::Take(std::vector<int>& unused) {
  alignas(inotify_event) std::array<char, kEventsAtOnce * kEventBytes> events;
  bool complete = true;
  for (;;) {
    const ssize_t bytes = read(inotify_.get(), events.data(), events.size());
    if (bytes <= 0) return complete;
    for (std::size_t at = 0; at + kEventBytes <= static_cast<std::size_t>(bytes);) {
      inotify_event event;
      std::memcpy(&event, events.data() + at, sizeof event);
      at += kEventBytes + event.len;
      if ((event.mask & IN_Q_OVERFLOW) != 0) complete = false;
      if ((event.mask & IN_IGNORED) != 0) unused.push_back(event.wd);
    }
  }
}

// The kernel lists them as "inotify wd:1f ino:...".
std::set<int> LastUse::Watched() const {
  std::ifstream file(fmt::format("/proc/self/fdinfo/{}", inotify_.get()));
  std::set<int> watched;
  for (std::string line; std::getline(file, line);) {
    unsigned number = 0;
    if (std::sscanf(line.c_str(), "inotify wd:%x", &number) == 1) {
      watched.insert(static_cast<int>(number));
    }
  }
  return watched;
}

}  // namespace phub
