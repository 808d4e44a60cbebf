// A Transport over byte streams: framing and closing, shared by tcp and the simulation. A subclass
// only reports which streams are ready.
//
// Ownership: a StreamConnection owns its queue and its received messages, so Adopt allocates
// nothing. The transport owns a table of entries of fixed size. Everything here belongs to the
// transport's thread.
//
// Received messages are lent until Release, or until the Connection is destroyed (allowed after its
// kClosed was polled). Release of a closed connection's message is ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/transport/stream/byte_stream.h"
#include "common/transport/stream/linger.h"
#include "common/transport/stream/receiver.h"
#include "common/transport/stream/sender.h"
#include "common/transport/transport.h"
#include "common/transport/turn_transport.h"

namespace phub::transport {

// Sizes of one connection, fixed when it is created.
struct StreamLimits {
  std::uint32_t send_queue = 512;    // requests posted and not yet reported or forgotten
  std::uint32_t received_lent = 64;  // messages lent at once
};

class StreamConnection : public Connection, public ByteStream {
 public:
  explicit StreamConnection(const StreamLimits& limits)
      : sender_(limits.send_queue), receiver_(limits.received_lent) {}

 private:
  friend class StreamTransport;
  friend struct StreamEntry;
  StreamSender sender_;
  StreamReceiver receiver_;
};

struct StreamEntry : ConnectionEntry<StreamConnection> {
  bool readable = true;             // the stream may have bytes
  bool writable = true;             // the stream may have room
  bool receive_idle = false;        // cannot receive until the stream is readable
  bool write_failed = false;        // the next read reports why
  std::uint64_t flowing_in = 0;     // value of interval_ when it last received part of a payload
  std::uint64_t pushed_before = 0;  // requests pushed before the last KeepAlive

  StreamSender& sender() const { return connection->sender_; }
  void CheckInvariants() const {
    connection->sender_.CheckInvariants();
    if (!ends()) connection->receiver_.CheckInvariants();
  }
};

class StreamTransport : public TurnTransport<StreamEntry> {
 public:
  // linger_bytes: see linger.h.
  explicit StreamTransport(std::uint32_t connections_max, std::size_t linger_bytes = 0);
  ~StreamTransport() override;
  StreamTransport(const StreamTransport&) = delete;
  StreamTransport& operator=(const StreamTransport&) = delete;

  // `connection` must be of the subclass's type.
  [[nodiscard]] ConnectionId Adopt(Connection& connection,
                                   std::span<const LandingSlot> landing) override;
  [[nodiscard]] bool Arm() override;
  void Tick(TimeNs now) override;
  DurationNs TakeLinger(TimeNs now) override;

 protected:
  // Finds out which streams became ready, without blocking, and calls MarkReady for them.
  virtual void CollectReadiness() = 0;
  // Starts watching a stream; false if the system refuses. A new stream counts as ready.
  virtual bool Watch(StreamConnection& connection, ConnectionId id) = 0;
  // Stops watching. Called once per watched connection, before its kClosed is polled. The
  // destructor does not call it, because connections may be destroyed by then.
  virtual void Unwatch(StreamConnection& connection) = 0;

  // The subclass may call it at any time on this thread. Stale ids are ignored.
  void MarkReady(ConnectionId id, bool readable, bool writable);
  // Null for stale ids.
  StreamConnection* Find(ConnectionId id);

 private:
  void Notice() override { CollectReadiness(); }
  bool CanPost(const StreamEntry& entry) const override { return !entry.write_failed; }
  void Push(StreamEntry& entry, std::span<const std::byte, wire::kHeaderBytes> header,
            const SendRequest& request) override;
  void KeepAlive(StreamEntry& entry) override;
  Activity Observe(const StreamEntry& entry) const override;
  bool CanSend(const StreamEntry& entry) const override {
    return entry.writable && entry.sender().has_unsent();
  }
  void Send(StreamEntry& entry, std::size_t& turn_bytes) override;
  const ReceivedMessage* Receive(StreamEntry& entry, std::size_t& turn_bytes) override;
  void ReleaseMessage(StreamEntry& entry, const ReceivedMessage* message) override;
  bool HasWork(const StreamEntry& entry) const override;
  void StopServing(StreamEntry& entry) override;
  void NoteFlow(StreamEntry& entry, bool flows);

  Linger linger_;
  std::uint64_t interval_ = 1;  // number of the interval between two calls of TakeLinger
  std::uint32_t flowing_count_ =
      0;            // connections that received bytes in this interval and are inside a message
  TimeNs now_ = 0;  // time of the last Tick
};

}  // namespace phub::transport
