#include "common/base/waiter.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "common/base/shortage.h"

namespace phub {

Doorbell::Doorbell() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), error_(event_ ? 0 : errno) {}

absl::Status Doorbell::status() const {
  return error_ == 0 ? absl::OkStatus() : DescriptorShortage("create an eventfd", error_);
}

void Doorbell::Ring() const {
  const std::uint64_t one = 1;
  // Fails only if the counter is at its maximum; the descriptor is then already readable.
  [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof one);
}

void Doorbell::Clear() const {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof count);
}

void Waiter::Add(int descriptor) { items_.push_back({descriptor, POLLIN, 0}); }

bool Waiter::Wait(DurationNs timeout, int ignored) {
  for (pollfd& item : items_) item.events = item.fd == ignored ? 0 : POLLIN;
  const timespec limit{.tv_sec = timeout / kSecond, .tv_nsec = timeout % kSecond};
  const int count = ppoll(items_.data(), items_.size(), timeout < 0 ? nullptr : &limit, nullptr);
  if (count > 0) return true;
  for (pollfd& item : items_) item.revents = 0;  // an interrupted call leaves old values
  return false;
}

bool Waiter::IsReadable(int descriptor) const {
  return std::any_of(items_.begin(), items_.end(), [descriptor](const pollfd& item) {
    return item.fd == descriptor && item.revents != 0;
  });
}

}  // namespace phub
