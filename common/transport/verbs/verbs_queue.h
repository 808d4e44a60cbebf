// A completion queue: of one transport (so polled by one thread only) on one device.
//
// Every queue pair takes room in it for all that it can ever complete, before it is made: a queue
// that overflows is lost with every lane on it. Reserve and Return: any thread; what does not
// say so is the transport's.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "common/transport/verbs/verbs_device.h"

struct ibv_comp_channel;
struct ibv_cq;
struct ibv_wc;

namespace phub::transport {

class VerbsQueue {
 public:
  // As many entries as were wanted, or as the device has.
  static absl::StatusOr<std::shared_ptr<VerbsQueue>> Create(
      std::shared_ptr<const VerbsDevice> device, std::uint32_t entries_wanted);
  ~VerbsQueue();
  VerbsQueue(const VerbsQueue&) = delete;
  VerbsQueue& operator=(const VerbsQueue&) = delete;

  [[nodiscard]] bool Reserve(std::uint32_t entries);
  void Return(std::uint32_t entries);

  // How many were taken.
  std::size_t Poll(std::span<ibv_wc> completions);
  // No completion comes any more, for ever: the device was taken away, or broke the queue. Found
  // out by Poll, RequestEvent or whoever sees its descriptor fail. broken, lost: any thread.
  bool broken() const { return broken_.load(std::memory_order_relaxed); }
  bool lost() const { return broken() || device_->events().lost(); }
  void Break(const char* call, int error);
  // Readable when something happens, once after each RequestEvent. TakeEvents makes it silent.
  int descriptor() const;
  void RequestEvent();
  void TakeEvents();

  ibv_cq* get() const { return queue_; }
  const std::shared_ptr<const VerbsDevice>& device() const { return device_; }

 private:
  VerbsQueue(std::shared_ptr<const VerbsDevice> device, ibv_comp_channel* channel);

  const std::shared_ptr<const VerbsDevice> device_;
  ibv_comp_channel* const channel_;
  ibv_cq* queue_ = nullptr;
  std::uint32_t entries_ = 0;
  std::atomic<std::uint32_t> reserved_{0};
  std::atomic<bool> broken_{false};
};

}  // namespace phub::transport
