// What an RDMA device says on its own: ports that go down and come up, addresses that change, a
// device or a queue that is broken. Read by a thread of its own, logged, and kept for lanes to see.
//
// Belongs to the open device, and ends before it is closed.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "common/base/descriptor.h"

struct ibv_async_event;
struct ibv_context;

namespace phub::transport {

class VerbsEvents {
 public:
  // port: the one whose state is kept. Events of others are logged only.
  VerbsEvents(ibv_context* context, std::string device, std::uint8_t port);
  ~VerbsEvents();
  VerbsEvents(const VerbsEvents&) = delete;
  VerbsEvents& operator=(const VerbsEvents&) = delete;

  // Any thread. Once lost, for ever: no lane on the device goes on.
  bool lost() const { return lost_.load(std::memory_order_relaxed); }
  // Lanes outlive a short interruption: what is not acknowledged is sent again.
  bool port_down() const { return port_down_.load(std::memory_order_relaxed); }

 private:
  void Attend();
  void Take(const ibv_async_event& event);

  ibv_context* const context_;
  const std::string device_;
  const std::uint8_t port_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> port_down_{false};
  Descriptor stop_;
  std::thread thread_;
};

}  // namespace phub::transport
