// The prober's calls to other daemons. Only for the files of the prober.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <mutex>

#include "absl/status/status.h"
#include "server/control/rpc/prober.h"

namespace phub::server {

// A call to another daemon, which Stop() can cancel.
class Prober::Call {
 public:
  Call(Prober& prober, DurationNs timeout) : prober_(prober) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(timeout));
    const std::lock_guard lock(prober_.mutex_);
    if (prober_.stopping_) context_.TryCancel();
    prober_.calls_.insert(&context_);
  }
  ~Call() {
    const std::lock_guard lock(prober_.mutex_);
    prober_.calls_.erase(&context_);
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  Prober& prober_;
  grpc::ClientContext context_;
};

absl::Status TooManyRelays();  // too many operators' calls wait for other racks

}  // namespace phub::server
