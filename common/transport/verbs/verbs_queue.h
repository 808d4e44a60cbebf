// A completion queue of one transport on one device. Only the transport's thread polls it.
//
// Before a queue pair is created, it reserves room for all its possible completions, because a
// queue that overflows fails with every lane on it. Any thread may call Reserve and Return. The
// other functions belong to the transport's thread, unless stated otherwise.
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
  // Has `entries_wanted` entries, or as many as the device supports.
  static absl::StatusOr<std::shared_ptr<VerbsQueue>> Create(
      std::shared_ptr<const VerbsDevice> device, std::uint32_t entries_wanted);
  ~VerbsQueue();
  VerbsQueue(const VerbsQueue&) = delete;
  VerbsQueue& operator=(const VerbsQueue&) = delete;

  [[nodiscard]] bool Reserve(std::uint32_t entries);
  void Return(std::uint32_t entries);

  // Returns the number of completions.
  std::size_t Poll(std::span<ibv_wc> completions);
  // No completion will follow: the device was removed, or the queue has failed. Set by Poll,
  // RequestEvent, and Break (called if the descriptor fails). broken, lost: any thread.
  bool broken() const { return broken_.load(std::memory_order_relaxed); }
  bool lost() const { return broken() || device_->events().lost(); }
  void Break(const char* call, int error);
  // Becomes readable at the first completion after each RequestEvent. TakeEvents clears it.
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
