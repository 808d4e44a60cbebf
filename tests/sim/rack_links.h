// The lanes between the core loops of several racks, whose links have a finite rate, in virtual
// time. Each rack has a link in either direction. The lanes of a rack share its link as TCP's flows
// do: each in turn sends a packet. A lane's socket holds what its core loop has written and the
// link has not sent, up to the limit that Connection::LimitUnsent has set. A rack whose link is
// full of packets from others delays these at their senders.
//
// Lanes to workers are infinitely fast. Everything runs in one thread, and two runs are identical.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "common/transport/transport.h"

namespace phub::sim {

struct LinkOptions {
  double bytes_per_second = 125e6;  // 1 Gbit/s
  DurationNs latency = 20 * kMicrosecond;
  std::uint32_t packet_bytes = 16 * 1024;        // as segmentation offload makes them
  std::uint32_t socket_bytes = 4 * 1024 * 1024;  // without another limit
  std::uint32_t queue_bytes = 256 * 1024;        // before a rack's link, of packets to it
  std::uint32_t send_queue = 256;                // messages of a lane
};

class RackLinks;

// The transport of one rack's core loop.
class RackTransport final : public transport::Transport {
 public:
  // A lane's end. Lanes to workers ignore the limit.
  class Endpoint final : public transport::Connection {
   public:
    void LimitUnsent(std::uint32_t bytes) override { limit = bytes; }
    std::uint32_t limit = 0;
    std::uint32_t other_rack = UINT32_MAX;  // a lane to a rack
  };
  using Hear = std::function<void(const wire::MessageHeader&, std::span<const std::byte>)>;

  RackTransport(RackLinks& links, std::uint32_t rack) : links_(links), rack_(rack) {}

  // The worker that receives from lanes to workers, and what it sends. The payload is in its slot.
  void SetHearer(Hear hear) { hear_ = std::move(hear); }
  void Send(const wire::MessageHeader& header);

  transport::ConnectionId Adopt(transport::Connection& connection,
                                std::span<const transport::LandingSlot> landing) override;
  void SetLanding(transport::ConnectionId id,
                  std::span<const transport::LandingSlot> landing) override;
  void Close(transport::ConnectionId /*id*/) override {}
  std::size_t Post(std::span<const transport::SendRequest> requests) override;
  std::size_t Poll(std::span<transport::Completion> completions) override;
  void Release(std::span<const transport::Completion> completions) override;
  bool Arm() override { return !HasWork(); }
  int descriptor() const override { return -1; }
  void Tick(TimeNs /*now*/) override {}

  // Messages have arrived, are sent, or can be written.
  bool HasWork() const;

 private:
  friend class RackLinks;
  struct Message {
    wire::MessageHeader header;
    std::span<const std::byte> payload;
    std::uint64_t end = 0;  // the position of its last byte in what the lane sends
    std::uint64_t cookie = 0;
    bool notify_sent = false;
  };
  // All positions count the bytes of the lane from its begin.
  struct Lane {
    Endpoint* endpoint = nullptr;
    std::span<const transport::LandingSlot> landing;
    std::deque<transport::ReceivedMessage> inbox, lent;
    std::deque<Message> queue;      // not written completely, or not reported
    std::deque<Message> in_flight;  // not arrived
    std::uint64_t posted = 0, written = 0, left = 0, arrived = 0;
    TimeNs stalled_until = 0;  // its packets are not sent before
  };
  bool IsWorker(const Lane& lane) const { return lane.endpoint->other_rack == UINT32_MAX; }
  std::uint64_t RoomOf(const Lane& lane) const;
  bool CanWrite(const Lane& lane) const;
  std::size_t Report(std::uint32_t index, std::span<transport::Completion> completions);

  RackLinks& links_;
  const std::uint32_t rack_;
  Hear hear_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::uint32_t> lane_to_;  // [rack]
};

class RackLinks {
 public:
  RackLinks(std::uint32_t racks, const LinkOptions& options);
  ~RackLinks();

  const Clock& clock() const { return clock_; }
  const LinkOptions& options() const { return options_; }
  RackTransport& transport(std::uint32_t rack) { return *transports_[rack]; }
  // Executes the next event, and advances time to it. False: no event is left.
  bool Step();
  void Schedule(TimeNs time, std::function<void()> function);
  // Nothing of what `from` sends to `to` leaves before that time.
  void Stall(std::uint32_t from, std::uint32_t to, TimeNs until);

 private:
  friend class RackTransport;
  class VirtualClock final : public Clock {
   public:
    TimeNs Now() const override { return now; }
    TimeNs now = 1;
  };
  struct Event {
    TimeNs time = 0;
    std::uint64_t sequence = 0;
    std::function<void()> function;
    bool operator<(const Event& other) const {
      return std::pair(time, sequence) > std::pair(other.time, other.sequence);
    }
  };
  struct Packet {
    std::uint32_t from = 0;
    std::uint64_t bytes = 0;
  };
  struct Rack {
    bool sends = false, receives = false;
    std::uint32_t next_lane = 0;     // whose turn it is
    std::deque<Packet> queue;        // packets that wait to be received
    std::uint64_t queued_bytes = 0;  // those, and what is on the way
  };
  DurationNs TimeOf(std::uint64_t bytes) const;
  void StartSending(std::uint32_t rack);
  void StartReceiving(std::uint32_t rack);
  void Deliver(std::uint32_t from, std::uint32_t to, std::uint64_t bytes);

  const LinkOptions options_;
  VirtualClock clock_;
  std::vector<std::unique_ptr<RackTransport>> transports_;
  std::vector<Rack> racks_;
  std::priority_queue<Event> events_;
  std::uint64_t sequence_ = 0;
};

}  // namespace phub::sim
