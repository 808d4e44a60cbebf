// How a thread that polls goes to sleep when there is nothing to do, and how others wake it.
#pragma once

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

// Blocks on several descriptors at once. One thread.
class Waiter {
 public:
  Waiter();
  void Add(int descriptor);
  // Until a descriptor is readable or the time is up (negative: no limit; under 1 ms: at once).
  // True if one is readable.
  bool Wait(DurationNs timeout) const;

 private:
  Descriptor epoll_;
};

}  // namespace phub
