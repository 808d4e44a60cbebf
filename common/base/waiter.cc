#include "common/base/waiter.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>

#include "common/base/check.h"

namespace phub {

Doorbell::Doorbell() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  PHUB_CHECK(event_, "eventfd errno={}", errno);
}

void Doorbell::Ring() const {
  const std::uint64_t one = 1;
  // Fails only when the counter is at its maximum, and then the bell is ringing already.
  [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof one);
}

void Doorbell::Clear() const {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof count);
}

Waiter::Waiter() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  PHUB_CHECK(epoll_, "epoll_create1 errno={}", errno);
}

void Waiter::Add(int descriptor) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = descriptor;
  const int result = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event);
  PHUB_CHECK(result == 0, "descriptor={} errno={}", descriptor, errno);
}

bool Waiter::Wait(DurationNs timeout) const {
  epoll_event event{};
  const int timeout_ms = timeout < 0 ? -1 : static_cast<int>(timeout / kMillisecond);
  return epoll_wait(epoll_.get(), &event, 1, timeout_ms) > 0;
}

}  // namespace phub
