#include "server/control/core_link.h"

#include <utility>

#include "common/base/check.h"

namespace phub::server {

CoreLink::CoreLink(CoreHandle handle) : handle_(std::move(handle)) {
  PHUB_CHECK(handle_.queues != nullptr && handle_.counters != nullptr);
  sent_ = handle_.counters->commands_done.load(std::memory_order_acquire);
}

Ticket CoreLink::Send(const Command& command) {
  backlog_.push_back(command);
  ++sent_;
  Flush();
  return sent_;
}

void CoreLink::Flush() {
  bool pushed = false;
  while (!backlog_.empty() && handle_.queues->commands.TryPush(backlog_.front())) {
    backlog_.pop_front();
    pushed = true;
  }
  if (pushed && handle_.wake) handle_.wake();
}

bool CoreLink::Acknowledged(Ticket ticket) const {
  return handle_.counters->commands_done.load(std::memory_order_acquire) >= ticket;
}

}  // namespace phub::server
