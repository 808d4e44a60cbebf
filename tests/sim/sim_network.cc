#include "tests/sim/sim_network.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "common/base/check.h"
#include "tests/sim/sim_transport.h"

namespace phub::sim {

using transport::IoResult;
using transport::IoStatus;

namespace {

constexpr std::uint64_t kMillion = 1'000'000;

std::size_t Total(std::span<const iovec> parts) {
  std::size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

std::uint64_t Mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
  return hash * 0xFF51AFD7ED558CCDull;
}

}  // namespace

// The bytes from one end to the other: a ring of written but unread bytes. The first `arrived` of
// them can be read.
struct SimNetwork::Direction {
  std::vector<std::byte> ring;
  std::size_t head = 0;
  std::size_t stored = 0;
  std::size_t arrived = 0;
  std::size_t freed = 0;           // read, but not yet known to the sender
  std::size_t unacknowledged = 0;  // the sender's view of the bytes in the pipe; >= stored
  TimeNs last_arrival = 0;
  TimeNs clogged_until = 0;
  TimeNs line_free_at = 0;  // with limited bandwidth: when the last byte leaves the sender
  bool end_sent = false;
  bool end_arrived = false;
  bool sender_waits = false;  // a write found no room
};

struct SimNetwork::End {
  NodeId node = 0;
  SimTransport* watcher = nullptr;
  transport::ConnectionId id;
  bool shut = false;       // after Shutdown: neither receives nor sends
  bool destroyed = false;  // the Connection object was destroyed
  bool vanished = false;   // its node crashed
  bool reset = false;
};

struct SimNetwork::Link {
  End ends[2];
  Direction directions[2];  // by end: the bytes that it sends
};

void VirtualClock::AdvanceTo(TimeNs now) {
  PHUB_CHECK(now >= now_, "now={} was={}", now, now_);
  now_ = now;
}

SimNetwork::SimNetwork(std::uint64_t seed, const SimNetworkOptions& options)
    : options_(options), random_(seed) {
  events_.reserve(1 << 14);
}

SimNetwork::~SimNetwork() = default;

SimNetwork::ConnectionPair SimNetwork::Connect(NodeId a, NodeId b) {
  PHUB_CHECK(options_.pipe_bytes > 0);
  const auto index = static_cast<std::uint32_t>(links_.size());
  auto link = std::make_unique<Link>();
  link->ends[0].node = a;
  link->ends[1].node = b;
  for (Direction& direction : link->directions) direction.ring.resize(options_.pipe_bytes);
  links_.push_back(std::move(link));
  ConnectionPair pair = {
      std::make_unique<Connection>(*this, index, std::uint8_t{0}, options_.limits),
      std::make_unique<Connection>(*this, index, std::uint8_t{1}, options_.limits)};
  pair.first->SetVersion(wire::kLaneVersion);
  pair.second->SetVersion(wire::kLaneVersion);
  return pair;
}

SimNetwork::Connection::~Connection() { network_.DestroyEnd(link_, end_); }

IoResult SimNetwork::Connection::Readv(std::span<const iovec> parts) {
  return network_.Read(link_, end_, parts);
}

IoResult SimNetwork::Connection::Writev(std::span<const iovec> parts) {
  return network_.Write(link_, end_, parts);
}

void SimNetwork::Connection::Shutdown() { network_.ShutdownEnd(link_, end_); }

IoResult SimNetwork::Read(std::uint32_t link_index, std::uint8_t end,
                          std::span<const iovec> parts) {
  Link& link = *links_[link_index];
  Direction& direction = link.directions[1 - end];
  if (link.ends[end].reset) return {0, IoStatus::kReset};
  if (link.ends[end].vanished) return {0, IoStatus::kDrained};
  if (direction.arrived == 0) {
    return {0, direction.end_arrived ? IoStatus::kClosed : IoStatus::kDrained};
  }
  std::size_t count = std::min(direction.arrived, Total(parts));
  if (random_.Chance(options_.split_read_chance, kMillion)) count = 1 + random_.Below(count);
  std::size_t left = count;
  for (const iovec& part : parts) {
    auto* to = static_cast<std::byte*>(part.iov_base);
    std::size_t of_part = std::min(left, part.iov_len);
    left -= of_part;
    while (of_part > 0) {
      const std::size_t run = std::min(of_part, direction.ring.size() - direction.head);
      std::memcpy(to, direction.ring.data() + direction.head, run);
      direction.head = (direction.head + run) % direction.ring.size();
      to += run;
      of_part -= run;
    }
  }
  direction.stored -= count;
  direction.arrived -= count;
  bytes_delivered_ += count;
  // The sender learns of the room one latency later, together with bytes that are read until then.
  if (direction.freed == 0) {
    Push(clock_.Now() + options_.latency_min, EventKind::kWindow, link_index,
         static_cast<std::uint8_t>(1 - end), 0);
  }
  direction.freed += count;
  const bool more = direction.arrived > 0 || direction.end_arrived;
  return {count, more ? IoStatus::kMore : IoStatus::kDrained};
}

IoResult SimNetwork::Write(std::uint32_t link_index, std::uint8_t end,
                           std::span<const iovec> parts) {
  Link& link = *links_[link_index];
  Direction& direction = link.directions[end];
  if (link.ends[end].reset || link.ends[end].shut) return {0, IoStatus::kReset};
  const std::size_t wanted = Total(parts);
  const std::size_t room = direction.ring.size() - direction.unacknowledged;
  std::size_t count = std::min(room, wanted);
  if (count == 0 || link.ends[end].vanished) {
    direction.sender_waits = true;
    return {0, IoStatus::kDrained};
  }
  if (random_.Chance(options_.partial_write_chance, kMillion)) count = 1 + random_.Below(count);
  std::size_t left = count;
  std::size_t at = (direction.head + direction.stored) % direction.ring.size();
  for (const iovec& part : parts) {
    const auto* from = static_cast<const std::byte*>(part.iov_base);
    std::size_t of_part = std::min(left, part.iov_len);
    left -= of_part;
    while (of_part > 0) {
      const std::size_t run = std::min(of_part, direction.ring.size() - at);
      std::memcpy(direction.ring.data() + at, from, run);
      at = (at + run) % direction.ring.size();
      from += run;
      of_part -= run;
    }
  }
  direction.stored += count;
  direction.unacknowledged += count;
  const auto bytes = static_cast<std::uint32_t>(count);
  Push(ArrivalTime(direction, bytes), EventKind::kDeliver, link_index, end, bytes);
  if (random_.Chance(options_.reset_chance, kMillion)) {
    const auto delay = random_.Below(static_cast<std::uint64_t>(4 * options_.latency_min) + 1);
    Push(clock_.Now() + static_cast<DurationNs>(delay), EventKind::kReset, link_index, end, 0);
  }
  if (count == room) {
    direction.sender_waits = true;
    return {count, IoStatus::kDrained};
  }
  return {count, IoStatus::kMore};
}

// In order, never before the latency, never during a clog.
TimeNs SimNetwork::ArrivalTime(Direction& direction, std::uint32_t bytes) {
  const TimeNs now = clock_.Now();
  if (random_.Chance(options_.clog_chance, kMillion) && options_.clog_max > 0) {
    const auto stall = random_.Below(static_cast<std::uint64_t>(options_.clog_max)) + 1;
    direction.clogged_until =
        std::max(direction.clogged_until, now + static_cast<DurationNs>(stall));
  }
  TimeNs leaves = std::max(now, direction.line_free_at);
  if (options_.bytes_per_second > 0) {
    leaves +=
        static_cast<DurationNs>(std::uint64_t{bytes} * 1'000'000'000 / options_.bytes_per_second);
    direction.line_free_at = leaves;
  }
  const auto jitter = random_.Below(
      static_cast<std::uint64_t>(std::max<DurationNs>(0, options_.latency_jitter)) + 1);
  const TimeNs arrives = leaves + options_.latency_min + static_cast<DurationNs>(jitter);
  direction.last_arrival = std::max({direction.last_arrival, direction.clogged_until, arrives});
  return direction.last_arrival;
}

void SimNetwork::ShutdownEnd(std::uint32_t link_index, std::uint8_t end) {
  Link& link = *links_[link_index];
  if (link.ends[end].shut || link.ends[end].reset || link.ends[end].vanished) return;
  link.ends[end].shut = true;
  Direction& direction = link.directions[end];
  direction.end_sent = true;
  Push(ArrivalTime(direction, 0), EventKind::kEnd, link_index, end, 0);
}

void SimNetwork::DestroyEnd(std::uint32_t link_index, std::uint8_t end) {
  ShutdownEnd(link_index, end);
  Link& link = *links_[link_index];
  link.ends[end].destroyed = true;
  link.ends[end].watcher = nullptr;
  if (link.ends[1 - end].destroyed) links_[link_index].reset();
}

void SimNetwork::Watch(std::uint32_t link_index, std::uint8_t end, SimTransport* watcher,
                       transport::ConnectionId id) {
  End& watched = links_[link_index]->ends[end];
  watched.watcher = watcher;
  watched.id = id;
}

void SimNetwork::Detach(const SimTransport* watcher) {
  for (const std::unique_ptr<Link>& link : links_) {
    if (link == nullptr) continue;
    for (End& end : link->ends) {
      if (end.watcher == watcher) end.watcher = nullptr;
    }
  }
}

void SimNetwork::Notify(End& end, bool readable, bool writable) {
  if (end.watcher != nullptr && !end.vanished) end.watcher->MarkReady(end.id, readable, writable);
}

void SimNetwork::Push(TimeNs time, EventKind kind, std::uint32_t link, std::uint8_t end,
                      std::uint32_t bytes) {
  events_.push_back({time, sequence_++, kind, end, link, bytes});
  std::push_heap(events_.begin(), events_.end(), std::greater<>());
}

void SimNetwork::Schedule(TimeNs time, std::function<void()> function) {
  std::uint32_t index = 0;
  if (free_calls_.empty()) {
    index = static_cast<std::uint32_t>(calls_.size());
    calls_.push_back(std::move(function));
  } else {
    index = free_calls_.back();
    free_calls_.pop_back();
    calls_[index] = std::move(function);
  }
  Push(std::max(time, clock_.Now()), EventKind::kCall, index, 0, 0);
}

bool SimNetwork::Step() {
  if (events_.empty()) return false;
  std::pop_heap(events_.begin(), events_.end(), std::greater<>());
  const Event event = events_.back();
  events_.pop_back();
  clock_.AdvanceTo(event.time);
  Execute(event);
  return true;
}

void SimNetwork::RunUntil(TimeNs time) {
  while (!events_.empty() && events_.front().time <= time) Step();
  clock_.AdvanceTo(time);
}

void SimNetwork::Execute(const Event& event) {
  history_hash_ = Mix(history_hash_, static_cast<std::uint64_t>(event.time));
  history_hash_ = Mix(history_hash_, (std::uint64_t{event.link} << 32) | event.bytes);
  history_hash_ = Mix(history_hash_, (static_cast<std::uint64_t>(event.kind) << 8) | event.end);
  if (event.kind == EventKind::kCall) {
    const std::function<void()> function = std::exchange(calls_[event.link], nullptr);
    free_calls_.push_back(event.link);
    function();
    return;
  }
  if (links_[event.link] == nullptr) return;
  Link& link = *links_[event.link];
  Direction& direction = link.directions[event.end];
  switch (event.kind) {
    case EventKind::kDeliver: return Deliver(event);
    case EventKind::kWindow: {
      // A receiver that crashed frees no room, and a reset pipe needs none.
      if (link.ends[1 - event.end].vanished || link.ends[event.end].reset) return;
      direction.unacknowledged -= std::exchange(direction.freed, 0);
      // As in TCP: a waiting sender is notified when a third of the pipe is free, not for every
      // byte.
      const std::size_t room = direction.ring.size() - direction.unacknowledged;
      if (direction.sender_waits && room >= (direction.ring.size() + 2) / 3) {
        direction.sender_waits = false;
        Notify(link.ends[event.end], false, true);
      }
      return;
    }
    case EventKind::kEnd:
      if (link.ends[1 - event.end].reset) return;
      direction.end_arrived = true;
      return Notify(link.ends[1 - event.end], true, false);
    case EventKind::kReset: return ResetLink(event.link);
    case EventKind::kCall: return;
  }
}

void SimNetwork::Deliver(const Event& event) {
  Link& link = *links_[event.link];
  End& receiver = link.ends[1 - event.end];
  if (receiver.reset || receiver.vanished) return;
  if (receiver.shut) {
    // The receiving end no longer exists, so the answer is a reset.
    Push(clock_.Now() + options_.latency_min, EventKind::kReset, event.link, event.end, 0);
    return;
  }
  link.directions[event.end].arrived += event.bytes;
  Notify(receiver, true, false);
}

void SimNetwork::ResetLink(std::uint32_t link_index) {
  Link& link = *links_[link_index];
  for (End& end : link.ends) {
    if (end.vanished || end.reset) continue;
    end.reset = true;
    Notify(end, true, true);
  }
}

void SimNetwork::Reset(const Connection& connection) { ResetLink(connection.link_); }

bool SimNetwork::ResetBetween(NodeId a, NodeId b) {
  bool found = false;
  for (std::uint32_t i = 0; i < links_.size(); ++i) {
    if (links_[i] == nullptr) continue;
    const NodeId first = links_[i]->ends[0].node;
    const NodeId second = links_[i]->ends[1].node;
    if (!(first == a && second == b) && !(first == b && second == a)) continue;
    ResetLink(i);
    found = true;
  }
  return found;
}

void SimNetwork::Clog(const Connection& sender, TimeNs until) {
  Direction& direction = links_[sender.link_]->directions[sender.end_];
  direction.clogged_until = std::max(direction.clogged_until, until);
}

void SimNetwork::Cut(NodeId from, NodeId to) {
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    for (std::size_t end = 0; end < 2; ++end) {
      if (link->ends[end].node != from || link->ends[1 - end].node != to) continue;
      link->directions[end].clogged_until = clock_.Now() + 3600 * kSecond;
    }
  }
}

void SimNetwork::Crash(NodeId node, DurationNs reset_after) {
  for (std::uint32_t i = 0; i < links_.size(); ++i) {
    if (links_[i] == nullptr) continue;
    for (std::uint8_t end = 0; end < 2; ++end) {
      if (links_[i]->ends[end].node != node || links_[i]->ends[end].vanished) continue;
      links_[i]->ends[end].vanished = true;
      Push(clock_.Now() + reset_after, EventKind::kReset, i, end, 0);
    }
  }
}

}  // namespace phub::sim
