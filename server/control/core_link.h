// Control's end of one core loop: sends commands in order and knows which of them were executed.
// The queue is bounded. Commands that do not fit wait here, in order, until Flush. So do commands
// whose event might find no room (kReportsUntakenMax); lanes are refused instead (HasLaneRoom).
//
// Owned by control; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "server/core/core_loop.h"

namespace phub::server {

// What control needs from one core loop. All pointers must outlive control.
struct CoreHandle {
  CoreQueues* queues = nullptr;
  const CoreCounters* counters = nullptr;
  std::function<void()> wake;  // called after commands were pushed; empty in the simulation
  std::vector<transport::TransportCounter> transport_counters = {};  // of its transports
};

// The number of a command in the sequence sent to one core loop, from 1. Ticket 0 always counts as
// acknowledged.
using Ticket = std::uint64_t;

class CoreLink {
 public:
  explicit CoreLink(CoreHandle handle);

  Ticket Send(const Command& command);
  void Flush();
  bool Acknowledged(Ticket ticket) const;
  bool TakeEvent(Event& event);
  // Whether another lane may be attached: kLanesUnreportedMax.
  bool HasLaneRoom() const { return lanes_unreported_ < kLanesUnreportedMax; }

  std::size_t backlog() const { return backlog_.size(); }
  const CoreCounters& counters() const { return *handle_.counters; }
  const std::vector<transport::TransportCounter>& transport_counters() const {
    return handle_.transport_counters;
  }

 private:
  CoreHandle handle_;
  std::deque<Command> backlog_;
  Ticket sent_ = 0;
  std::size_t lanes_unreported_ = 0;  // attached, and kLaneClosed was not taken
  std::size_t reports_untaken_ = 0;
};

// The links to all core loops. [core]
class CoreLinks {
 public:
  explicit CoreLinks(std::vector<CoreHandle> handles);

  std::size_t size() const { return links_.size(); }
  CoreLink& operator[](std::size_t core) { return links_[core]; }
  const CoreLink& operator[](std::size_t core) const { return links_[core]; }
  auto begin() const { return links_.begin(); }
  auto end() const { return links_.end(); }

  // Whether every core loop has executed the command of its ticket. True for no tickets.
  bool Acknowledged(const std::vector<Ticket>& tickets) const;

 private:
  std::vector<CoreLink> links_;
};

inline CoreIndex CoreAt(std::size_t index) { return {static_cast<std::uint32_t>(index)}; }

}  // namespace phub::server
