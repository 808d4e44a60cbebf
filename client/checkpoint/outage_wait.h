// Repeats a transfer while daemons cannot be reached or are too busy (common/rpc/outage.h). One
// thread. Private to client/checkpoint.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "client/checkpoint/checkpoint.h"
#include "common/base/backoff.h"

namespace phub::client {

class OutageWait {
 public:
  // options.outage_timeout and options.progress end the wait.
  explicit OutageWait(const TransferOptions& options) : options_(options) {}

  // After a failure. True: it is an outage; try again now, a pause is over. False: return `status`,
  // which may name a shortage of this process now.
  bool Pause(absl::Status& status, const TransferProgress& progress);
  // The daemons answered.
  void Over() {
    begun_.reset();
    reported_.reset();
    backoff_.Reset();
  }

 private:
  using Clock = std::chrono::steady_clock;
  void Report(const absl::Status& error, Clock::time_point now);

  const TransferOptions& options_;
  std::optional<Clock::time_point> begun_;
  std::optional<Clock::time_point> reported_;
  Backoff backoff_;
};

}  // namespace phub::client
