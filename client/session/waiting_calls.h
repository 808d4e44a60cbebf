// The calls of one job to its daemons that have not returned, for dumps (dump_answers.h). Any
// thread.
#pragma once

#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "common/base/clock.h"

namespace phub::client {

class WaitingCalls {
 public:
  struct Call {
    const char* name = nullptr;  // static storage
    TimeNs since = 0;
  };

  explicit WaitingCalls(const Clock& clock) : clock_(clock) {}

  // Lists a call while it exists.
  class Mark {
   public:
    Mark(WaitingCalls& calls, const char* name) : calls_(calls), place_(calls.Add(name)) {}
    ~Mark() { calls_.Remove(place_); }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

   private:
    WaitingCalls& calls_;
    const std::list<Call>::iterator place_;
  };

  std::vector<Call> OldestFirst() const {
    const std::lock_guard lock(mutex_);
    return {calls_.begin(), calls_.end()};
  }

 private:
  std::list<Call>::iterator Add(const char* name) {
    const std::lock_guard lock(mutex_);
    return calls_.insert(calls_.end(), {name, clock_.Now()});
  }
  void Remove(std::list<Call>::iterator place) {
    const std::lock_guard lock(mutex_);
    calls_.erase(place);
  }

  const Clock& clock_;
  mutable std::mutex mutex_;
  std::list<Call> calls_;
};

}  // namespace phub::client
