// Control's end of one core loop: sends commands in order, knows which were executed. The queue is
// bounded; commands that find it full wait here, in order, until Flush.
//
// Owned by control; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "server/control/control.h"

namespace phub::server {

// Number of a command among all sent to one core loop, from 1; 0 is acknowledged from the start.
using Ticket = std::uint64_t;

class CoreLink {
 public:
  explicit CoreLink(CoreHandle handle);

  Ticket Send(const Command& command);
  void Flush();
  bool Acknowledged(Ticket ticket) const;
  bool TakeEvent(Event& event) { return handle_.queues->events.TryPop(event); }

  std::size_t backlog() const { return backlog_.size(); }
  const CoreCounters& counters() const { return *handle_.counters; }
  const transport::VerbsCounters* verbs_counters() const { return handle_.verbs_counters; }

 private:
  CoreHandle handle_;
  std::deque<Command> backlog_;
  Ticket sent_ = 0;
};

}  // namespace phub::server
