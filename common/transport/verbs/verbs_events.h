// The asynchronous events of an RDMA device: ports go down or come up, addresses change, a device
// or a queue breaks. A separate thread reads and logs them, and keeps the state for lanes.
//
// Belongs to the open device, and must be destroyed before the device is closed.
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
  // port: the port whose state is kept. Events of other ports are only logged.
  VerbsEvents(ibv_context* context, std::string device, std::uint8_t port);
  ~VerbsEvents();
  VerbsEvents(const VerbsEvents&) = delete;
  VerbsEvents& operator=(const VerbsEvents&) = delete;

  // Any thread. A lost device stays lost: no lane on it can continue.
  bool lost() const { return lost_.load(std::memory_order_relaxed); }
  // Lanes survive a short interruption, because packets without acknowledgement are sent again.
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
