// How a thread that polls goes to sleep when there is nothing to do, and how others wake it.
#pragma once

#include <poll.h>

#include <vector>

#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub {

// An eventfd. Ring() from any thread makes descriptor() readable until Clear().
class Doorbell {
 public:
  Doorbell();
  void Ring() const;
  void Clear() const;
  int descriptor() const { return event_.get(); }

 private:
  Descriptor event_;
};

// Blocks on several descriptors at once: a handful, or it would keep an epoll of its own. One
// thread.
class Waiter {
 public:
  void Add(int descriptor);
  // Until a descriptor is readable or the time is up (negative: no limit). True if one is readable.
  // `ignored`: one of the descriptors, not waited for this time.
  bool Wait(DurationNs timeout, int ignored = -1);
  // After Wait: was that one?
  bool IsReadable(int descriptor) const;

 private:
  std::vector<pollfd> items_;
};

}  // namespace phub
