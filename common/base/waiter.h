// Lets a polling thread sleep when it has no work, and lets other threads wake it.
#pragma once

#include <poll.h>

#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub {

// An eventfd. Ring() from any thread makes descriptor() readable until Clear().
class Doorbell {
 public:
  // The owner checks status() before it uses the doorbell: the process may lack descriptors.
  Doorbell();
  absl::Status status() const;
  void Ring() const;
  void Clear() const;
  int descriptor() const { return event_.get(); }

 private:
  Descriptor event_;
  const int error_;  // errno of the failed call; 0: none failed
};

// Blocks on several descriptors at once. Made for a handful of them; more would need epoll. One
// thread.
class Waiter {
 public:
  void Add(int descriptor);
  // Waits until a descriptor is readable or the timeout expires (negative: no timeout). True if one
  // is readable. `ignored`: a descriptor that this call does not wait for.
  bool Wait(DurationNs timeout, int ignored = -1);
  // Whether the last Wait() found `descriptor` readable.
  bool IsReadable(int descriptor) const;

 private:
  std::vector<pollfd> items_;
};

}  // namespace phub
