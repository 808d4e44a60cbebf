// What a job has on the RDMA devices of its worker's host: a completion queue on each, for the
// engine's transport, and a protection domain in which the memory of its keys is registered.
//
// A lane that is opened again may take another device than it had, if that one was lost. So what is
// registered is registered with every device that a lane uses, ever.
//
// Cold. Opened before the engine; WayTo by whoever opens lanes, Register by whoever adds keys: one
// thread at a time each.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/transport/verbs/verbs_domain.h"
#include "common/transport/verbs/verbs_queue.h"

namespace phub::transport {

class VerbsSide {
 public:
  // Every device that has an active port, or those that the environment's PHUB_VERBS_DEVICES names
  // (device_list.h); `daemon_host` decides which of its addresses is used, if that does not say.
  explicit VerbsSide(const std::string& daemon_host);

  // Why there is no device to use; empty if there is one.
  const std::string& why_not() const { return why_not_; }
  std::vector<std::shared_ptr<VerbsQueue>> queues() const;

  // How the lane to this core of that host's daemon travels. Devices that the environment names are
  // taken in turn, as the daemon's core loops take theirs; else first the device whose address has
  // most in common with the host's. attempt: from 0 on; each is another device. With a device's
  // first lane all memory is made known to it: that takes its time. kNotFound: there is no such
  // device, nor one for attempts after it; else it is this one's trouble.
  struct Way {
    std::shared_ptr<VerbsQueue> queue;
    std::shared_ptr<VerbsDomain> domain;
    std::string reason;  // for the log
  };
  absl::StatusOr<Way> WayTo(const std::string& host, std::uint32_t core, std::uint32_t attempt);
  std::uint32_t device_count() const { return static_cast<std::uint32_t>(ports_.size()); }

  // Makes memory known to every device that lanes use: gradients (kSend), parameters (kReceive). It
  // stays so until the job ends. What cannot be registered is copied on its way, and logged.
  void Register(std::byte* data, std::size_t bytes, RegisteredMemory::Use use);

 private:
  struct Port {
    std::shared_ptr<VerbsQueue> queue;
    std::shared_ptr<VerbsDomain> domain;  // null: no lane uses it
  };
  struct Memory {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    RegisteredMemory::Use use{};
  };
  // The one to be used, with the lock. peer: none if they are taken in turn. Null: there are fewer.
  Port* Choose(const std::optional<Gid>& peer, std::uint32_t core, std::uint32_t attempt);
  static void RegisterWith(VerbsDomain& domain, const Memory& memory);

  std::string why_not_;
  bool named_ = false;  // the environment says which devices, in what order
  std::mutex mutex_;    // lanes are opened again while keys are added
  std::vector<Port> ports_;
  std::vector<Memory> memory_;
};

}  // namespace phub::transport
