// A job's resources on the RDMA devices of its worker's host: for each device a completion queue,
// for the engine's transport, and a protection domain, with which the memory of the job's keys is
// registered.
//
// A lane that is opened again may use another device if the first one was lost. So memory is
// registered with every device that any lane has used.
//
// Off the data path. Created before the engine. One thread at a time calls WayTo to open lanes, and
// one at a time calls Register to add keys.
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
  // Opens every device with an active port, or those in the environment variable PHUB_VERBS_DEVICES
  // (device_list.h). If the variable does not set an address, it is chosen for `daemon_host`.
  explicit VerbsSide(const std::string& daemon_host);

  // Why there is no device to use; empty if there is one.
  const std::string& why_not() const { return why_not_; }
  std::vector<std::shared_ptr<VerbsQueue>> queues() const;

  // Chooses the device for the lane to this core loop of that host's daemon. Devices from the
  // environment are used in turn, as the daemon's core loops use theirs. Otherwise devices are
  // ordered by how much their address has in common with the host's. attempt: from 0; each uses
  // another device. A device's first lane registers all memory with it, which takes time.
  // kNotFound: there is no device for this attempt or later ones. Other errors concern this device
  // only.
  struct Way {
    std::shared_ptr<VerbsQueue> queue;
    std::shared_ptr<VerbsDomain> domain;
    std::string reason;  // for the log
  };
  absl::StatusOr<Way> WayTo(const std::string& host, std::uint32_t core, std::uint32_t attempt);
  std::uint32_t device_count() const { return static_cast<std::uint32_t>(ports_.size()); }

  // Registers memory with every device that lanes use: gradients (kSend), parameters (kReceive). It
  // stays registered until the job ends. A failure is logged, and the data is copied instead.
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
  // Chooses the port for an attempt; requires mutex_. peer: empty if ports are used in turn. Null:
  // there are not that many ports.
  Port* Choose(const std::optional<Gid>& peer, std::uint32_t core, std::uint32_t attempt);
  static void RegisterWith(VerbsDomain& domain, const Memory& memory);

  std::string why_not_;
  bool named_ = false;  // the environment lists the devices, in order
  std::mutex mutex_;    // lanes may be opened while keys are added
  std::vector<Port> ports_;
  std::vector<Memory> memory_;
};

}  // namespace phub::transport
