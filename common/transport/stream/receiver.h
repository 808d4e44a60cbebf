// The receiving half of the framing: it turns the bytes of one stream into messages.
//
// A read fills {rest of the payload, stash}: the payload goes directly to its destination, and the
// header that follows it goes to the stash. So a message costs one system call while data is there.
// The stash holds several headers, so one call can read several credits, which have no payload.
// Payload bytes that end up in the stash are copied; that is less than 1 % of a 64 KiB chunk. If
// the next message is unknown, a read is long enough for a complete small message.
//
// Messages come from a pool of fixed size and are lent until Release. When all are lent, decoding
// stops (kStarved), the stream fills up, and the peer must wait. Nothing allocates after
// construction, and no size depends on a peer's data. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/transport/message_pool.h"
#include "common/transport/stream/byte_stream.h"
#include "common/transport/transport.h"

namespace phub::transport {

class StreamReceiver {
 public:
  enum class Outcome : std::uint8_t {
    kMessage,  // a complete message; lent until Release
    kBlocked,  // the stream has no more bytes for now
    kStarved,  // every message is lent
    kYield,    // the byte budget is used up
    kEnded,    // the stream has ended; `error` says why
  };
  struct Result {
    Outcome outcome = Outcome::kBlocked;
    TransportError error = TransportError::kNone;
    ProtocolError protocol_error = ProtocolError::kNone;
    const ReceivedMessage* message = nullptr;
  };

  explicit StreamReceiver(std::uint32_t message_count);

  // Runs until one of the outcomes. Reads only while `readable`, and clears it when the stream is
  // drained. Subtracts the bytes that it reads from `budget_bytes`; the last read may exceed it.
  // Must not be called again after kEnded.
  //
  // If the stream ends inside a message, the result is {kPeerClosed, kTruncated}: the peer was
  // probably killed, so this is a lost connection and not a protocol error.
  Result Receive(ByteStream& stream, std::span<const LandingSlot> landing, bool& readable,
                 std::size_t& budget_bytes);

  // Checks P1, R1 and R2 of docs/internals/invariants.md.
  void CheckInvariants() const;

  // Ends a loan. Ignores messages that this receiver has not lent.
  void Release(const ReceivedMessage* message);

  // Whether a message is partly received, so that its rest, or the end of the stream, must follow.
  bool inside_message() const { return message_ != nullptr; }
  std::uint32_t lent_count() const { return pool_.lent_count(); }
  std::uint64_t received_bytes() const { return received_bytes_; }

 private:
  static constexpr std::size_t kStashBytes = 8 * wire::kHeaderBytes;  // behind a payload
  static constexpr std::size_t kFirstBytes = 4096 + kStashBytes;      // outside a payload

  std::size_t stash_size() const { return stash_end_ - stash_begin_; }
  bool ReadHeader(ByteStream& stream, bool& readable, std::size_t& budget_bytes, Result& ended);
  bool ReadPayload(ByteStream& stream, bool& readable, std::size_t& budget_bytes, Result& ended);
  bool Account(const IoResult& io, bool& readable, std::size_t& budget_bytes, Result& ended);
  ProtocolError StartMessage(std::span<const LandingSlot> landing);
  ProtocolError CheckLanding(std::span<const LandingSlot> landing) const;
  void TakeStashedPayload();

  MessagePool pool_;

  // The message that is being received; taken from pool_ after its header was accepted.
  ReceivedMessage* message_ = nullptr;
  std::byte* payload_ = nullptr;  // destination of its payload
  std::size_t payload_have_ = 0;

  std::uint64_t received_bytes_ = 0;
  std::size_t stash_begin_ = 0;
  std::size_t stash_end_ = 0;
  std::array<std::byte, kFirstBytes> stash_;
};

}  // namespace phub::transport
