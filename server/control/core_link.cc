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

CoreLinks::CoreLinks(std::vector<CoreHandle> handles) {
  PHUB_CHECK(!handles.empty());
  for (CoreHandle& handle : handles) links_.emplace_back(std::move(handle));
}

bool CoreLinks::Acknowledged(const std::vector<Ticket>& tickets) const {
  for (std::size_t core = 0; core < tickets.size(); ++core) {
    if (!links_[core].Acknowledged(tickets[core])) return false;
  }
  return true;
}

}  // namespace phub::server
