// A network of byte pipes in virtual time, in one thread, decided by one seed. It does what TCP may
// do to a program (delay, split, stall, reset, vanish) and nothing that TCP may not (lose, reorder
// or change bytes of a live connection).
//
// Time advances only in Step and RunUntil. Events are ordered by (time, sequence), so equal seeds
// and equal calls give equal runs. Connections hold a pointer to their network, which must outlive
// them. Scheduling, connecting and calls allocate memory; moving bytes does not, once the event
// heap has grown.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/transport/stream/byte_stream.h"
#include "common/transport/stream/stream_transport.h"

namespace phub::sim {

class SimTransport;

class VirtualClock final : public Clock {
 public:
  TimeNs Now() const override { return now_; }
  void AdvanceTo(TimeNs now);  // never backwards

 private:
  TimeNs now_ = 0;
};

// One simulated process or core loop: a unit with its own transport, or that dies on its own.
using NodeId = std::uint32_t;

// The caller draws these from its seed. Chances are per million calls.
struct SimNetworkOptions {
  DurationNs latency_min = 10 * kMicrosecond;  // one way
  DurationNs latency_jitter = 0;               // up to this much more, drawn for each write
  std::uint64_t bytes_per_second = 0;          // per direction; 0: no limit
  std::uint32_t pipe_bytes = 256 * 1024;       // per direction, sent and not yet read
  std::uint32_t split_read_chance = 0;     // a read returns a random part of the available bytes
  std::uint32_t partial_write_chance = 0;  // a write accepts a random part of what fits
  std::uint32_t clog_chance = 0;           // per write: the direction stalls for a while
  DurationNs clog_max = 10 * kMillisecond;
  std::uint32_t reset_chance = 0;    // per write: the connection is reset
  transport::StreamLimits limits{};  // limits of the connections
};

class SimNetwork {
 public:
  // One end of a connection. It refers to the network; its destructor closes the end.
  class Connection;
  using ConnectionPair = std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>>;

  SimNetwork(std::uint64_t seed, const SimNetworkOptions& options);
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  const VirtualClock& clock() const { return clock_; }
  const SimNetworkOptions& options() const { return options_; }
  SimNetworkOptions& options() { return options_; }  // may be changed at any time

  // Creates a connection that both ends know at once. The caller models the round trips of a dial.
  ConnectionPair Connect(NodeId a, NodeId b);

  // Executes the next event and advances time to it. Returns false if no event is left.
  bool Step();
  // Executes the events up to `time` and advances time there.
  void RunUntil(TimeNs time);
  // Runs a function as an event, at `time` or now, whichever is later.
  void Schedule(TimeNs time, std::function<void()> function);

  // Both ends see kReset at once; bytes in flight are lost.
  void Reset(const Connection& connection);
  // Resets every connection between two nodes. Returns false if they have none.
  bool ResetBetween(NodeId a, NodeId b);
  // Stalls this end's sending direction: bytes written from now on arrive no sooner than `until`.
  void Clog(const Connection& sender, TimeNs until);
  // What `from` sends to `to` on the connections between them is lost from now on. Nobody is
  // notified.
  void Cut(NodeId from, NodeId to);
  // The node disappears: its ends neither send nor receive, and no peer is notified. Its peers'
  // ends are reset after `reset_after`. Its own transports and connections may be destroyed.
  void Crash(NodeId node, DurationNs reset_after);

  // The bytes moved so far, and a running hash of every event. Both are equal in two runs of a
  // seed.
  std::uint64_t bytes_delivered() const { return bytes_delivered_; }
  std::uint64_t history_hash() const { return history_hash_; }

 private:
  friend class SimTransport;
  friend class Connection;

  struct Direction;
  struct End;
  struct Link;
  enum class EventKind : std::uint8_t { kDeliver, kWindow, kEnd, kReset, kCall };
  struct Event {
    TimeNs time = 0;
    std::uint64_t sequence = 0;
    EventKind kind{};
    std::uint8_t end = 0;  // kDeliver, kWindow, kEnd: the end whose sending direction is concerned
    std::uint32_t link = 0;  // kCall: index into calls_
    std::uint32_t bytes = 0;
    bool operator>(const Event& other) const {
      return std::pair(time, sequence) > std::pair(other.time, other.sequence);
    }
  };

  transport::IoResult Read(std::uint32_t link, std::uint8_t end, std::span<const iovec> parts);
  transport::IoResult Write(std::uint32_t link, std::uint8_t end, std::span<const iovec> parts);
  void ShutdownEnd(std::uint32_t link, std::uint8_t end);
  void DestroyEnd(std::uint32_t link, std::uint8_t end);
  void Watch(std::uint32_t link, std::uint8_t end, SimTransport* watcher,
             transport::ConnectionId id);
  void Detach(const SimTransport* watcher);
  void Notify(End& end, bool readable, bool writable);
  void ResetLink(std::uint32_t link);
  void Push(TimeNs time, EventKind kind, std::uint32_t link, std::uint8_t end, std::uint32_t bytes);
  void Execute(const Event& event);
  void Deliver(const Event& event);
  TimeNs ArrivalTime(Direction& direction, std::uint32_t bytes);

  VirtualClock clock_;
  SimNetworkOptions options_;
  SeededRandom random_;
  std::vector<std::unique_ptr<Link>> links_;  // never shrinks; freed links are null
  std::vector<Event> events_;                 // a heap, earliest first
  std::vector<std::function<void()>> calls_;
  std::vector<std::uint32_t> free_calls_;
  std::uint64_t sequence_ = 0;
  std::uint64_t bytes_delivered_ = 0;
  std::uint64_t history_hash_ = 0;
};

class SimNetwork::Connection final : public transport::StreamConnection {
 public:
  Connection(SimNetwork& network, std::uint32_t link, std::uint8_t end,
             const transport::StreamLimits& limits)
      : StreamConnection(limits), network_(network), link_(link), end_(end) {}
  ~Connection() override;

  // Tests that write their own bytes may call these directly.
  transport::IoResult Readv(std::span<const iovec> parts) override;
  transport::IoResult Writev(std::span<const iovec> parts) override;
  void Shutdown() override;

 private:
  friend class SimNetwork;
  friend class SimTransport;
  SimNetwork& network_;
  const std::uint32_t link_;
  const std::uint8_t end_;
};

}  // namespace phub::sim
