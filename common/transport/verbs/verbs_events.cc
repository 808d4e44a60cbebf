#include "common/transport/verbs/verbs_events.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/shortage.h"

namespace phub::transport {

absl::StatusOr<std::unique_ptr<VerbsEvents>> VerbsEvents::Create(ibv_context* context,
                                                                 std::string device,
                                                                 std::uint8_t port) {
  const int flags = fcntl(context->async_fd, F_GETFL);
  PHUB_CHECK(flags >= 0 && fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK) == 0, "errno={}",
             errno);
  std::unique_ptr<VerbsEvents> events(new VerbsEvents(context, std::move(device), port));
  if (absl::Status status = events->stop_.status(); !status.ok()) return status;
  const absl::Status started =
      StartThread(events->thread_, "rdma-events", [raw = events.get()] { raw->Attend(); });
  if (!started.ok()) return started;
  return events;
}

VerbsEvents::~VerbsEvents() {
  if (!thread_.joinable()) return;
  stop_.Ring();
  thread_.join();
}

void VerbsEvents::Attend() {
  pthread_setname_np(pthread_self(), "rdma-events");
  std::array<pollfd, 2> items{{{context_->async_fd, POLLIN, 0}, {stop_.descriptor(), POLLIN, 0}}};
  for (;;) {
    const int count = poll(items.data(), items.size(), /*timeout=*/-1);
    PHUB_CHECK(count >= 0 || errno == EINTR, "poll errno={}", errno);
    if (count < 0) continue;
    if (items[1].revents != 0) return;
    ibv_async_event event{};
    while (ibv_get_async_event(context_, &event) == 0) {
      Take(event);
      // The object that the event names may be destroyed only after this call.
      ibv_ack_async_event(&event);
    }
    // The descriptor itself has failed: the driver was removed.
    if ((items[0].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
      lost_.store(true, std::memory_order_relaxed);
      LogError("event=rdma_device_lost device={} reason=\"its driver was removed\"", device_);
      return;
    }
  }
}

// Broken devices and completion queues are reported only here. Broken queue pairs are also reported
// by their completions, with more detail.
void VerbsEvents::Take(const ibv_async_event& event) {
  const char* const what = ibv_event_type_str(event.event_type);
  switch (event.event_type) {
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
      lost_.store(true, std::memory_order_relaxed);
      LogError("event=rdma_device_lost device={} reason=\"{}\"", device_, what);
      return;
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE: {
      const bool down = event.event_type == IBV_EVENT_PORT_ERR;
      if (event.element.port_num == port_) port_down_.store(down, std::memory_order_relaxed);
      LogWarning("event=rdma_port_{} device={} port={}", down ? "down" : "up", device_,
                 event.element.port_num);
      return;
    }
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      LogInfo("event=rdma_port_changed device={} port={} what=\"{}\"", device_,
              event.element.port_num, what);
      return;
    case IBV_EVENT_COMM_EST:  // a message arrived before the queue pair was set to send
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_SQ_DRAINED: return;
    default: LogWarning("event=rdma_event device={} what=\"{}\"", device_, what);
  }
}

}  // namespace phub::transport
