// A rank's barriers, which the rack's first daemon, the anchor, completes. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "client/session/key_owner.h"
#include "client/session/rack_calls.h"
#include "phub/client.h"

namespace phub::client {

class JobBarriers {
 public:
  // All must outlive this object. Before the first call, the rank must have joined.
  JobBarriers(RackCalls& calls, const KeyOwner& job, const std::string& tenant)
      : calls_(calls), job_(job), tenant_(tenant) {}

  // Job::Barrier()
  Status Wait();
  // Job::ExplainBarrier()
  Status Explain() const;

 private:
  RackCalls& calls_;
  const KeyOwner& job_;
  const std::string& tenant_;
  std::mutex mutex_;  // numbers barriers in the order of the calls
  std::uint64_t next_ = 0;
};

}  // namespace phub::client
