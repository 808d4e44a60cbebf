#include "common/transport/verbs/verbs_queue.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "common/base/check.h"

namespace phub::transport {
namespace {

// Completions of queue pairs that are gone by now may still lie in the queue: room that nobody is
// promised.
constexpr std::uint32_t kSlackShare = 8;  // an eighth

absl::Status Failed(const VerbsDevice& device, const char* what) {
  const int error = errno;  // some providers fail without saying why
  return absl::ResourceExhaustedError(
      fmt::format("RDMA device {} gives no {}: {}", device.name(), what,
                  error == 0 ? "no reason given" : std::generic_category().message(error)));
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
    const int error = ibv_destroy_cq(queue_);
    PHUB_CHECK(error == 0, "ibv_destroy_cq error={}", error);
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
  const int count = ibv_poll_cq(queue_, static_cast<int>(completions.size()), completions.data());
  PHUB_CHECK(count >= 0, "device={} ibv_poll_cq={}", device_->name(), count);
  return static_cast<std::size_t>(count);
}

int VerbsQueue::descriptor() const { return channel_->fd; }

void VerbsQueue::RequestEvent() {
  const int error = ibv_req_notify_cq(queue_, /*solicited_only=*/0);
  PHUB_CHECK(error == 0, "device={} ibv_req_notify_cq={}", device_->name(), error);
}

void VerbsQueue::TakeEvents() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  unsigned taken = 0;
  while (ibv_get_cq_event(channel_, &queue, &context) == 0) ++taken;
  if (taken > 0) ibv_ack_cq_events(queue_, taken);
}

}  // namespace phub::transport
