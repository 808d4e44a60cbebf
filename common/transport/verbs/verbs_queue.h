// A completion queue: of one transport (so polled by one thread only) on one device.
//
// Every queue pair takes room in it for all that it can ever complete, before it is made: a queue
// that overflows is lost with every lane on it. Reserve and Return: any thread; the rest belongs to
// the transport's.
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

  // How many were taken. A queue that has failed is a broken device: the process ends, with a word.
  std::size_t Poll(std::span<ibv_wc> completions);
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
};

}  // namespace phub::transport
