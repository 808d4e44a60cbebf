// The interface between core loops (or the client's engine) and the transports.
//
// A Transport belongs to one thread. No call blocks, allocates or throws. It serves many
// connections; one connection is one lane (a worker to a core loop). Other threads create
// connections (dial, listen, handshake, memory), off the data path. The result is a Connection
// object, which the transport's own thread then adopts.
//
// Lending. The caller must not free or change a payload given to Post until every connection that
// the request names has reported kSent for it (if notify_sent) or kClosed. Without notify_sent the
// caller must know by other means (a reply) that it was sent. A received message is lent to the
// caller from Poll until Release. Payload of kGradient and kParameters is received directly into
// landing[header.slot], which belongs to the owner. Payload of kRecord is in the message.
//
// Shared memory (shm only). Both ends of a connection may map the same regions. Payload that is
// posted from such a region is not copied. A kGradient with kNoSlot is received in place
// (message.payload). If the payload is already in its landing slot, it is only announced. The peer
// may change this memory at any time, so each byte must be loaded only once.
// For such payload, kSent means that the peer was notified, not that it has read the payload. The
// payload must not change until the peer's answer: the reply to a gradient, the next gradient after
// parameters.
//
// A transport checks a peer's messages for memory safety and form only: the header decodes, and the
// slot is inside the landing table, open, and large enough. Otherwise the connection closes with
// kProtocol. The caller must check the meaning.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/single_writer_number.h"
#include "common/transport/silence_meter.h"
#include "common/wire/message.h"

namespace phub::transport {

// Names a connection within one transport. Generations are never reused, so the id of a closed
// connection never names another one.
struct ConnectionId {
  std::uint32_t index = UINT32_MAX;
  std::uint32_t generation = 0;
  friend bool operator==(const ConnectionId&, const ConnectionId&) = default;
};

// Where the payload for one slot is received. data == nullptr: the slot is closed, and payload for
// it is a protocol error. The table belongs to the lane's owner, who may change entries between
// calls.
struct LandingSlot {
  std::byte* data = nullptr;
  std::uint32_t bytes_max = 0;
  bool read_only = false;  // payload must already be here (shared memory); nothing is written
};

enum class TransportError : std::uint8_t {
  kNone,
  kPeerClosed,   // orderly end of stream
  kReset,        // connection reset, or any other failure reported by the system
  kProtocol,     // the peer violated the protocol; completion.protocol_error says how
  kLocalClosed,  // Close() was called
};
const char* ToString(TransportError error);

enum class ProtocolError : std::uint8_t {
  kNone,
  kMagic,
  kVersion,
  kKind,
  kOperation,
  kType,
  kReserved,
  kPayloadBytes,
  kSlotRange,     // slot outside the landing table
  kSlotClosed,    // landing slot has no memory
  kSlotBytes,     // payload larger than the landing slot
  kTruncated,     // the stream ended inside a message
  kSlotReadOnly,  // payload for a read-only landing slot is not in that slot
  kSharedRange,   // an address names no shared memory, or memory that the peer may not use
  kRing,          // invalid indices of a shared ring
  kDoorbell,      // too many rings without a message
  kImmediate,     // an immediate names a slot or chunk that the peer may not use (verbs)
};
const char* ToString(ProtocolError error);

struct SendRequest {
  wire::MessageHeader header;
  std::span<const std::byte> payload;         // kRecord: copied by Post; otherwise lent (see above)
  std::span<const ConnectionId> connections;  // read during Post only; a reply goes to many lanes
  std::uint64_t cookie = 0;
  bool notify_sent = false;  // one kSent completion per connection
};

struct ReceivedMessage {
  wire::MessageHeader header;
  std::array<std::byte, wire::kInlineBytesMax> inline_payload;
  const std::byte* payload = nullptr;  // header.payload_bytes bytes; null if that is 0
};

enum class CompletionKind : std::uint8_t { kReceived, kSent, kClosed };

struct Completion {
  TransportError error = TransportError::kNone;  // set only for kClosed
  CompletionKind kind = CompletionKind::kReceived;
  ProtocolError protocol_error = ProtocolError::kNone;
  ConnectionId connection;
  std::uint64_t cookie = 0;                  // kSent
  const ReceivedMessage* message = nullptr;  // kReceived: lent until Release
};
static_assert(sizeof(Completion) <= 32, "two completions a cache line");

// A connection that is ready to be adopted; each transport derives its own class. The owner of the
// transport that adopts it must keep it alive until it has polled its kClosed. The destructor
// releases descriptors and memory.
class Connection {
 public:
  virtual ~Connection() = default;
  // Details of the connection's loss, for people: device, port, peer, status. Empty if the
  // error says it all. Any thread, after kClosed.
  virtual std::string Trouble() const { return {}; }
  // Bytes that must precede a landing slot of this end, in the same memory: the size of the header,
  // if one write transfers header and payload. Otherwise 0.
  virtual std::uint32_t slot_header_bytes() const { return 0; }

  // The system shall hold at most about so many bytes that it has not sent; 0: its default. By the
  // thread that serves the lane. Connections that send without a buffer of the system ignore it.
  virtual void LimitUnsent(std::uint32_t /*bytes*/) {}

  // The lane version that both ends agreed on. Its creator sets it before the lane is adopted.
  void SetVersion(std::uint8_t version) { version_ = version; }
  std::uint8_t version() const { return version_; }
  // The peer sends keep-alives, so its silence means something.
  bool keeps_alive() const { return version_ >= wire::kKeepAliveVersion; }
  // How long the peer has been silent. The thread that serves the lane measures, any thread reads.
  SilenceMeter& silence_meter() { return silence_meter_; }
  const SilenceMeter& silence_meter() const { return silence_meter_; }

 private:
  std::uint8_t version_ = wire::kLaneVersionMin;
  SilenceMeter silence_meter_;
};

// A number that a transport counts: its metric is phub_<name>_total. One thread writes it.
struct TransportCounter {
  const char* name = nullptr;  // starts with the transport's name
  const char* help = nullptr;  // one sentence
  const SingleWriterNumber* value = nullptr;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // What it counts, for metrics; cold. The values live as long as the transport.
  virtual std::vector<TransportCounter> ListCounters() const { return {}; }

  // Starts serving a connection. The transport reads the landing table whenever a header arrives;
  // the table must outlive the connection. ConnectionId{}: the transport's table is full.
  [[nodiscard]] virtual ConnectionId Adopt(Connection& connection,
                                           std::span<const LandingSlot> landing) = 0;
  // Replaces the landing table by a longer one, after keys were added.
  virtual void SetLanding(ConnectionId connection, std::span<const LandingSlot> landing) = 0;
  // Ends a connection: a kClosed completion (kLocalClosed) follows as the last one. Requests that
  // were posted but not sent are dropped. Ids that are unknown or closed are ignored.
  virtual void Close(ConnectionId connection) = 0;

  // Returns how many leading requests were accepted. A request is accepted for all its connections
  // or for none. If not all were accepted, some send queue is full: poll, then post the rest.
  // Requests to closed connections are accepted and dropped.
  [[nodiscard]] virtual std::size_t Post(std::span<const SendRequest> requests) = 0;
  // Fills in completions and returns how many. Those of one connection are in order.
  [[nodiscard]] virtual std::size_t Poll(std::span<Completion> completions) = 0;
  // While a connection is held, Poll returns no messages from it, and the transport may leave them
  // unread. The sender notices when buffers fill up. Sending and closing continue. A transport that
  // does not support this ignores the call.
  virtual void Hold(ConnectionId /*connection*/, bool /*held*/) {}
  // Shows the peer that this end is alive, unless something was sent since the last call or waits
  // to be sent. Sends at once, so it may be called during work that keeps the owner from Poll. A
  // peer over shared memory is not woken.
  virtual void SendKeepAlive(ConnectionId /*connection*/) {}
  // What the connection has received so far, for a SilenceMeter.
  virtual Activity ActivityOf(ConnectionId /*connection*/) const { return {}; }
  // Ends the loan of received messages; other kinds of completions are ignored.
  virtual void Release(std::span<const Completion> completions) = 0;

  // Call before blocking: makes descriptor() readable when anything happens. False: something is
  // already pending, do not block. May be called repeatedly.
  [[nodiscard]] virtual bool Arm() = 0;
  virtual int descriptor() const = 0;  // -1: nothing to block on (simulation)
  virtual void Tick(TimeNs now) = 0;   // for the transport's timers
  // How long an idle owner should wait, unarmed, before it polls again, because more data will
  // arrive in that time and is cheaper to move at once. 0: do not wait.
  virtual DurationNs TakeLinger(TimeNs /*now*/) { return 0; }

  // Sets how many more messages the owner needs on the connection before it is worth a wake-up
  // (default: 1). A peer that rings doorbells may delay the ring until then while it is busy.
  virtual void Await(ConnectionId /*connection*/, std::uint32_t /*messages*/) {}
  // The owner is idle: rings the doorbells that were delayed.
  virtual void OnIdle() {}

  // Shared memory of a connection. Transports without shared memory find nothing. The memory of a
  // closed connection can be looked up until the next Poll after its kClosed, because messages that
  // came before it may name that memory.
  //
  // The address of [data, data + bytes), if one region contains it; otherwise 0.
  virtual SharedAddress AddressOf(ConnectionId /*connection*/, const std::byte* /*data*/,
                                  std::size_t /*bytes*/) const {
    return {};
  }
  // The memory at that address, if this end may write there; otherwise null.
  virtual std::byte* Resolve(ConnectionId /*connection*/, SharedAddress /*address*/,
                             std::size_t /*bytes*/) const {
    return nullptr;
  }
  // Whether this end can place payload there: it may write there itself, or the transport does it
  // for a kParameters request with this header.reply_address.
  virtual bool CanPlace(ConnectionId connection, SharedAddress address, std::size_t bytes) const {
    return Resolve(connection, address, bytes) != nullptr;
  }
  // The peer's landing slot, if this end maps it. Payload that is written there, and posted from
  // there with that slot, is not copied again. Null if the slot is not mapped or does not exist.
  virtual std::byte* PeerSlot(ConnectionId /*connection*/, SlotIndex /*slot*/) const {
    return nullptr;
  }
};

}  // namespace phub::transport
