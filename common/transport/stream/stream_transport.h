// A Transport over byte streams: framing, lending, fairness and closing, shared by tcp and by the
// simulation. A subclass says which streams are ready; that is all it adds.
//
// Who owns what. A StreamConnection owns its queue and its received messages, so a connection's
// memory comes and goes with it and Adopt allocates nothing. The transport owns a table of entries
// of fixed size. Everything here belongs to the transport's thread.
//
// Work waits in one ring of ready connections, each at most once. A turn of a connection moves a
// bounded number of bytes and messages; what is left goes to the back of the ring. A connection is
// in the ring exactly if a turn could do something, so an empty ring means that blocking is right.
//
// Received messages are lent until Release, at the latest until the Connection is destroyed (which
// may happen once kClosed was polled). Release of a closed connection's message is ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/transport/stream/byte_stream.h"
#include "common/transport/stream/receiver.h"
#include "common/transport/stream/sender.h"
#include "common/transport/transport.h"

namespace phub::transport {

// What one connection holds, fixed when it is made.
struct StreamLimits {
  std::uint32_t send_queue = 512;    // requests posted and not yet reported or forgotten
  std::uint32_t received_lent = 64;  // messages lent at once
};

inline constexpr std::uint32_t kConnectionsMaxDefault = 4096;

class StreamConnection : public Connection, public ByteStream {
 public:
  explicit StreamConnection(const StreamLimits& limits)
      : sender_(limits.send_queue), receiver_(limits.received_lent) {}

 private:
  friend class StreamTransport;
  StreamSender sender_;
  StreamReceiver receiver_;
};

class StreamTransport : public Transport {
 public:
  explicit StreamTransport(std::uint32_t connections_max);
  ~StreamTransport() override;
  StreamTransport(const StreamTransport&) = delete;
  StreamTransport& operator=(const StreamTransport&) = delete;

  // `connection` is a StreamConnection of the kind that the subclass knows.
  [[nodiscard]] ConnectionId Adopt(Connection& connection,
                                   std::span<const LandingSlot> landing) override;
  void SetLanding(ConnectionId connection, std::span<const LandingSlot> landing) override;
  void Close(ConnectionId connection) override;
  [[nodiscard]] std::size_t Post(std::span<const SendRequest> requests) override;
  [[nodiscard]] std::size_t Poll(std::span<Completion> completions) override;
  void Release(std::span<const Completion> completions) override;
  [[nodiscard]] bool Arm() override;
  void Tick(TimeNs now) override;

 protected:
  // Learns which streams became ready, without blocking, and says so through MarkReady.
  virtual void CollectReadiness() = 0;
  // Starts watching a stream; false if the system refuses. The stream counts as ready.
  virtual bool Watch(StreamConnection& connection, ConnectionId id) = 0;
  // Stops watching. Called once per watched connection, before its kClosed is polled; not by the
  // destructor, when connections that are still served may be gone.
  virtual void Unwatch(StreamConnection& connection) = 0;

  // From CollectReadiness, or whenever the subclass likes on this thread. Stale ids are ignored.
  void MarkReady(ConnectionId id, bool readable, bool writable);
  // Null for stale ids.
  StreamConnection* Find(ConnectionId id);

 private:
  struct Entry;

  Entry* Live(ConnectionId id);
  bool PushToAll(const SendRequest& request);
  void MakeReady(Entry& entry);
  std::size_t Serve(Entry& entry, std::span<Completion> completions, std::size_t& budget_bytes);
  void Send(Entry& entry, std::size_t& budget_bytes);
  std::size_t ReportSent(Entry& entry, std::span<Completion> completions);
  std::size_t Receive(Entry& entry, std::span<Completion> completions, std::size_t& budget_bytes);
  bool CanProgress(const Entry& entry) const;
  void End(Entry& entry, TransportError error, ProtocolError protocol_error);
  Completion Forget(Entry& entry);
  ConnectionId IdOf(const Entry& entry) const;

  const std::uint32_t connections_max_;
  const std::unique_ptr<Entry[]> entries_;
  const std::unique_ptr<std::uint32_t[]> free_;  // a stack of entry indices
  std::uint32_t free_count_;
  const std::unique_ptr<std::uint32_t[]> ready_;  // a ring of entry indices
  std::uint64_t ready_head_ = 0;
  std::uint64_t ready_tail_ = 0;
};

}  // namespace phub::transport
