// The asynchronous events of an RDMA device: ports go down or come up, addresses change, a device
// or a queue breaks. A separate thread reads and logs them, and keeps the state for lanes.
//
// Belongs to the open device, and must be destroyed before the device is closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/waiter.h"

struct ibv_async_event;
struct ibv_context;

namespace phub::transport {

class VerbsEvents {
 public:
  // port: the port whose state is kept. Events of other ports are only logged.
  // kResourceExhausted: the process lacks threads or descriptors.
  static absl::StatusOr<std::unique_ptr<VerbsEvents>> Create(ibv_context* context,
                                                             std::string device, std::uint8_t port);
  ~VerbsEvents();
  VerbsEvents(const VerbsEvents&) = delete;
  VerbsEvents& operator=(const VerbsEvents&) = delete;

  // Any thread. A lost device stays lost: no lane on it can continue.
  bool lost() const { return lost_.load(std::memory_order_relaxed); }
  // Lanes survive a short interruption, because packets without acknowledgement are sent again.
  bool port_down() const { return port_down_.load(std::memory_order_relaxed); }

 private:
  VerbsEvents(ibv_context* context, std::string device, std::uint8_t port)
      : context_(context), device_(std::move(device)), port_(port) {}
  void Attend();
  void Take(const ibv_async_event& event);

  ibv_context* const context_;
  const std::string device_;
  const std::uint8_t port_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> port_down_{false};
  Doorbell stop_;
  std::thread thread_;
};

}  // namespace phub::transport
