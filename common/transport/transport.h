// The one interface between core loops (or the client's engine) and the ways bytes travel.
//
// A Transport belongs to one thread. No call blocks, allocates or throws. It serves many
// connections; one connection is one lane (a worker to a core loop). Making a connection is cold
// work (dial, listen, handshake, memory) done elsewhere by other threads: it yields a Connection
// object, which the transport's own thread then adopts.
//
// Lending. A payload given to Post stays readable and unchanged until every connection that the
// request names has reported kSent for it (if notify_sent) or kClosed; without notify_sent the
// caller must know by other means (a reply) that it was sent. A received message is lent to the
// caller from Poll until Release. Payload of kGradient and kParameters is received straight into
// landing[header.slot] and is in the owner's hands at once; payload of kRecord lies in the message.
//
// Shared memory (shm only). Both ends of a connection may map the same regions. Payload that is
// posted from one of them is not moved: a kGradient with kNoSlot is handed over where it lies
// (message.payload), and one that lies in its landing slot already is only announced. What lies
// there belongs to the peer, who may change it at any time: each byte is to be loaded once.
// Of such payload kSent says that the peer was told, not that it has looked: it stays unchanged
// until the peer's answer says so (a gradient's reply; the next gradient, for parameters).
//
// What a transport checks of what a peer sends is memory safety and form: header decodes, the
// slot is inside the landing table, open, and large enough. Else the connection closes with
// kProtocol. Meaning is the caller's to check.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/single_writer_number.h"
#include "common/wire/message.h"

namespace phub::transport {

// Names a connection within one transport. A generation is never reused, so an id kept after the
// connection closed names nothing.
struct ConnectionId {
  std::uint32_t index = UINT32_MAX;
  std::uint32_t generation = 0;
  friend bool operator==(const ConnectionId&, const ConnectionId&) = default;
};

// Where payload addressed to one slot is received. data == nullptr: closed, whoever sends there
// breaks the protocol. The table belongs to the lane's owner, who may change entries between calls.
struct LandingSlot {
  std::byte* data = nullptr;
  std::uint32_t bytes_max = 0;
  bool read_only = false;  // payload has to lie here already (shared memory); nothing is written
};

enum class TransportError : std::uint8_t {
  kNone,
  kPeerClosed,   // orderly end of stream
  kReset,        // connection reset, or any other failure that the system reports
  kProtocol,     // the peer broke the lane's form; completion.protocol_error says how
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
  kSlotReadOnly,  // payload for a landing slot that is not to be written lies elsewhere
  kSharedRange,   // names shared memory that is not there, or not the peer's
  kRing,          // the indices of a shared ring make no sense
  kDoorbell,      // rings without sending anything
  kImmediate,     // an immediate names a slot or chunk that is not the peer's to name (verbs)
};
const char* ToString(ProtocolError error);

struct SendRequest {
  wire::MessageHeader header;
  std::span<const std::byte> payload;         // kRecord: copied at Post; else lent (see above)
  std::span<const ConnectionId> connections;  // read during Post only; a reply names many lanes
  std::uint64_t cookie = 0;
  bool notify_sent = false;  // one kSent completion per connection
};

struct ReceivedMessage {
  wire::MessageHeader header;
  std::array<std::byte, wire::kInlineBytesMax> inline_payload;
  const std::byte* payload = nullptr;  // where payload_bytes lie; null if there are none
};

enum class CompletionKind : std::uint8_t { kReceived, kSent, kClosed };

struct Completion {
  TransportError error = TransportError::kNone;  // read first; not kNone only with kClosed
  CompletionKind kind = CompletionKind::kReceived;
  ProtocolError protocol_error = ProtocolError::kNone;
  ConnectionId connection;
  std::uint64_t cookie = 0;                  // kSent
  const ReceivedMessage* message = nullptr;  // kReceived: lent until Release
};
static_assert(sizeof(Completion) <= 32, "two completions a cache line");

// A connection made ready by a cold thread; each transport derives its own. Whoever adopts it
// keeps it alive until kClosed was polled for it; destroying it releases descriptor and memory.
class Connection {
 public:
  virtual ~Connection() = default;
  // What the system said when the connection was lost, for people: device, port, peer, status.
  // Empty if there is nothing to say beyond the error. Any thread, from kClosed on.
  virtual std::string Trouble() const { return {}; }
  // What a landing slot of this end needs before it, in the same memory: the message's header, if
  // it comes in one write with the payload.
  virtual std::uint32_t slot_header_bytes() const { return 0; }
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

  // Starts serving a connection. The landing table is read whenever a header arrives, and must
  // outlive the connection. ConnectionId{} if the transport's table is full.
  [[nodiscard]] virtual ConnectionId Adopt(Connection& connection,
                                           std::span<const LandingSlot> landing) = 0;
  // Replaces the landing table (a longer one, when keys are added).
  virtual void SetLanding(ConnectionId connection, std::span<const LandingSlot> landing) = 0;
  // Ends a connection: a kClosed completion (kLocalClosed) follows, and nothing after it. What was
  // posted and not yet sent is dropped. Unknown or closed ids are ignored.
  virtual void Close(ConnectionId connection) = 0;

  // How many leading requests were taken, each whole: for all its connections or not at all.
  // Fewer than given: some send queue is full; poll, and post again. A closed connection swallows.
  [[nodiscard]] virtual std::size_t Post(std::span<const SendRequest> requests) = 0;
  // Fills completions, returns how many. Completions of one connection come in order.
  [[nodiscard]] virtual std::size_t Poll(std::span<Completion> completions) = 0;
  // While held, what comes on the connection may be left where it is, and is not polled; its sender
  // finds out as the way fills up. Sending and closing go on. A transport that cannot ignores it.
  virtual void Hold(ConnectionId /*connection*/, bool /*held*/) {}
  // Ends the loan of received messages; other kinds in the span are ignored.
  virtual void Release(std::span<const Completion> completions) = 0;

  // Before blocking: makes descriptor() readable when anything happens. False if something is
  // pending already: do not block. Level: arming twice is harmless.
  [[nodiscard]] virtual bool Arm() = 0;
  virtual int descriptor() const = 0;  // -1: nothing to block on (simulation)
  virtual void Tick(TimeNs now) = 0;   // whatever the transport does by time
  // How long the owner, who has nothing to do, may leave this transport alone before it looks
  // again, unarmed, because more comes meanwhile and is cheaper to move at once. 0: not at all.
  virtual DurationNs TakeLinger(TimeNs /*now*/) { return 0; }

  // How many messages have to come on the connection before the owner has something worth waking
  // up for, from what it has polled so far: 1 unless it says otherwise. A peer that rings may wait
  // until then, as long as it has other things to do.
  virtual void Await(ConnectionId /*connection*/, std::uint32_t /*messages*/) {}
  // The owner has nothing to do: peers that are still to be rung are rung now.
  virtual void OnIdle() {}

  // Shared memory of a connection; without any, nothing is ever found. Of one that closes, until
  // its kClosed is taken: what came before it in the same Poll may still name that memory.
  // Names [data, data + bytes), if it lies in one region; else the address is 0.
  virtual SharedAddress AddressOf(ConnectionId /*connection*/, const std::byte* /*data*/,
                                  std::size_t /*bytes*/) const {
    return {};
  }
  // The memory of that name, if this end may write there; else null.
  virtual std::byte* Resolve(ConnectionId /*connection*/, SharedAddress /*address*/,
                             std::size_t /*bytes*/) const {
    return nullptr;
  }
  // Whether payload for that place reaches it: this end may write there, or a request of
  // kParameters that names it in header.reply_address is placed there by the transport.
  virtual bool CanPlace(ConnectionId connection, SharedAddress address, std::size_t bytes) const {
    return Resolve(connection, address, bytes) != nullptr;
  }
  // The peer's landing slot, if this end maps it: payload that is written and posted there, with
  // that slot, needs no further copy. Null else, and for slots that do not exist.
  virtual std::byte* PeerSlot(ConnectionId /*connection*/, SlotIndex /*slot*/) const {
    return nullptr;
  }
};

}  // namespace phub::transport
