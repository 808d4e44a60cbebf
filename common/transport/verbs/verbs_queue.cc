#include "common/transport/verbs/verbs_queue.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/check.h"
#include "common/base/errno_text.h"
#include "common/base/log.h"

namespace phub::transport {
namespace {

// This share of the entries is never reserved: completions of destroyed queue pairs may still be in
// the queue.
constexpr std::uint32_t kSlackShare = 8;  // an eighth

absl::Status Failed(const VerbsDevice& device, const char* what) {
  const int error = errno;  // some drivers do not set it
  return absl::ResourceExhaustedError(
      fmt::format("RDMA device {} cannot create a {}: {}", device.name(), what,
                  error == 0 ? "the driver gives no reason" : ErrnoText(error)));
}

}  // namespace

absl::StatusOr<std::shared_ptr<VerbsQueue>> VerbsQueue::Create(
    std::shared_ptr<const VerbsDevice> device, std::uint32_t entries_wanted) {
  ibv_comp_channel* channel = ibv_create_comp_channel(device->context());
  if (channel == nullptr) return Failed(*device, "completion channel");
  std::shared_ptr<VerbsQueue> queue(new VerbsQueue(device, channel));
  const int flags = fcntl(channel->fd, F_GETFL);
  PHUB_CHECK(flags >= 0 && fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) == 0, "errno={}", errno);
  queue->entries_ = std::min(entries_wanted, device->limits().queue_entries_max);
  queue->queue_ = ibv_create_cq(device->context(), static_cast<int>(queue->entries_), nullptr,
                                channel, /*comp_vector=*/0);
  if (queue->queue_ == nullptr) return Failed(*device, "completion queue");
  return queue;
}

VerbsQueue::VerbsQueue(std::shared_ptr<const VerbsDevice> device, ibv_comp_channel* channel)
    : device_(std::move(device)), channel_(channel) {}

VerbsQueue::~VerbsQueue() {
  if (queue_ != nullptr) {
    CheckGivenBack(device_->context(), "ibv_destroy_cq", ibv_destroy_cq(queue_));
  }
  ibv_destroy_comp_channel(channel_);
}

bool VerbsQueue::Reserve(std::uint32_t entries) {
  const std::uint32_t room = entries_ - entries_ / kSlackShare;
  std::uint32_t before = reserved_.load(std::memory_order_relaxed);
  do {
    if (entries > room - before) return false;
  } while (!reserved_.compare_exchange_weak(before, before + entries, std::memory_order_relaxed));
  return true;
}

void VerbsQueue::Return(std::uint32_t entries) {
  reserved_.fetch_sub(entries, std::memory_order_relaxed);
}

std::size_t VerbsQueue::Poll(std::span<ibv_wc> completions) {
  if (broken()) return 0;
  const int count = ibv_poll_cq(queue_, static_cast<int>(completions.size()), completions.data());
  if (count >= 0) return static_cast<std::size_t>(count);
  Break("ibv_poll_cq", count);
  return 0;
}

void VerbsQueue::Break(const char* call, int error) {
  if (broken_.exchange(true, std::memory_order_relaxed)) return;
  LogError("event=rdma_queue_lost device={} call={} error={}", device_->name(), call, error);
}

int VerbsQueue::descriptor() const { return channel_->fd; }

void VerbsQueue::RequestEvent() {
  if (broken()) return;
  const int error = ibv_req_notify_cq(queue_, /*solicited_only=*/0);
  if (error != 0) Break("ibv_req_notify_cq", error);
}

void VerbsQueue::TakeEvents() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  unsigned taken = 0;
  while (ibv_get_cq_event(channel_, &queue, &context) == 0) ++taken;
  if (taken > 0) ibv_ack_cq_events(queue_, taken);
}

}  // namespace phub::transport
