#include "server/control/core_link.h"

#include <utility>

#include "common/base/check.h"

namespace phub::server {
namespace {

bool AsksForReport(const Command& command) {
  return command.kind == Command::Kind::kReportStalls ||
         command.kind == Command::Kind::kReportVersions;
}

}  // namespace

CoreLink::CoreLink(CoreHandle handle) : handle_(std::move(handle)) {
  PHUB_CHECK(handle_.queues != nullptr && handle_.counters != nullptr);
  sent_ = handle_.counters->commands_done.load(std::memory_order_acquire);
}

Ticket CoreLink::Send(const Command& command) {
  if (command.kind == Command::Kind::kAttachLane) ++lanes_unreported_;
  backlog_.push_back(command);
  ++sent_;
  Flush();
  return sent_;
}

void CoreLink::Flush() {
  bool pushed = false;
  while (!backlog_.empty()) {
    const bool report = AsksForReport(backlog_.front());
    if (report && reports_untaken_ >= kReportsUntakenMax) break;
    if (!handle_.queues->commands.TryPush(backlog_.front())) break;
    if (report) ++reports_untaken_;
    backlog_.pop_front();
    pushed = true;
  }
  if (pushed && handle_.wake) handle_.wake();
}

bool CoreLink::TakeEvent(Event& event) {
  if (!handle_.queues->events.TryPop(event)) return false;
  switch (event.kind) {
    case Event::Kind::kLaneClosed:
      PHUB_CHECK(lanes_unreported_ > 0);
      --lanes_unreported_;
      break;
    case Event::Kind::kStallsReported:
    case Event::Kind::kVersionsReported:
      PHUB_CHECK(reports_untaken_ > 0);
      --reports_untaken_;
      break;
    default: break;
  }
  return true;
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
