// Control's end of one core loop: sends commands in order, knows which were executed. The queue is
// bounded; commands that find it full wait here, in order, until Flush.
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

// What control needs of one core loop. Everything pointed to outlives control.
struct CoreHandle {
  CoreQueues* queues = nullptr;
  const CoreCounters* counters = nullptr;
  std::function<void()> wake;  // called after commands were pushed; may be empty (simulation)
  std::vector<transport::TransportCounter> transport_counters = {};  // of its transports
};

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
  const std::vector<transport::TransportCounter>& transport_counters() const {
    return handle_.transport_counters;
  }

 private:
  CoreHandle handle_;
  std::deque<Command> backlog_;
  Ticket sent_ = 0;
};

// All of them. [core]
class CoreLinks {
 public:
  explicit CoreLinks(std::vector<CoreHandle> handles);

  std::size_t size() const { return links_.size(); }
  CoreLink& operator[](std::size_t core) { return links_[core]; }
  const CoreLink& operator[](std::size_t core) const { return links_[core]; }
  auto begin() const { return links_.begin(); }
  auto end() const { return links_.end(); }

  // Every core loop has executed the command that its ticket stands for. Empty: yes.
  bool Acknowledged(const std::vector<Ticket>& tickets) const;

 private:
  std::vector<CoreLink> links_;
};

inline CoreIndex CoreAt(std::size_t index) { return {static_cast<std::uint32_t>(index)}; }

}  // namespace phub::server
