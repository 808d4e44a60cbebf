// What a job has on the RDMA devices of its worker's host: a completion queue on each, for the
// engine's transport, and a protection domain in which the memory of its keys is registered.
//
// Cold. Opened before the engine; WayTo by whoever opens lanes, Register by whoever adds keys: one
// thread at a time each.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/transport/verbs/verbs_domain.h"
#include "common/transport/verbs/verbs_queue.h"

namespace phub::client {

class VerbsSide {
 public:
  // Every device that has an active port; `daemon_host` decides which of its addresses is used.
  explicit VerbsSide(const std::string& daemon_host);

  // Why there is no device to use; empty if there is one.
  const std::string& why_not() const { return why_not_; }
  std::vector<std::shared_ptr<transport::VerbsQueue>> queues() const;

  // How a lane to that host travels: by the device whose address has most in common with the
  // host's.
  struct Way {
    std::shared_ptr<transport::VerbsQueue> queue;
    std::shared_ptr<transport::VerbsDomain> domain;
    std::string reason;  // for the log
  };
  absl::StatusOr<Way> WayTo(const std::string& host);

  // Makes memory known to every device that lanes use: gradients (kSend), parameters (kReceive). It
  // stays so until the job ends. What cannot be registered is copied on its way, and logged.
  void Register(std::byte* data, std::size_t bytes, transport::RegisteredMemory::Use use);

 private:
  struct Port {
    std::shared_ptr<transport::VerbsQueue> queue;
    std::shared_ptr<transport::VerbsDomain> domain;  // null: no lane uses it
  };

  std::string why_not_;
  std::mutex mutex_;  // lanes are opened again while keys are added
  std::vector<Port> ports_;
};

}  // namespace phub::client
