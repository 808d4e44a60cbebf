// The receiving half of the framing: bytes of one stream become messages.
//
// Reads ask for {rest of the payload, stash}: the payload goes straight to where it belongs, and
// the stash takes the header that follows it, so a message costs one call while data is there.
// The stash is a few headers long, so that a run of credits, which have no payload, costs one call
// for several; what it catches of a payload is copied, less than 1 % of a 64 KiB chunk. Where
// nothing says what comes next, a read takes a small message whole.
//
// Messages come from a fixed set and are lent until Release; when all are lent, nothing more is
// decoded (kStarved), the stream fills, and the peer is held back. Nothing here allocates after
// construction, and nothing is sized by what a peer says. One thread.
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
    kMessage,  // a whole message; lent until Release
    kBlocked,  // the stream has no more bytes for now
    kStarved,  // every message is lent
    kYield,    // the byte budget is used up
    kEnded,    // the stream is over; error says why
  };
  struct Result {
    Outcome outcome = Outcome::kBlocked;
    TransportError error = TransportError::kNone;
    ProtocolError protocol_error = ProtocolError::kNone;
    const ReceivedMessage* message = nullptr;
  };

  explicit StreamReceiver(std::uint32_t message_count);

  // Goes on until one of the outcomes. Reads only while `readable`, which it clears when the
  // stream is drained. Takes the bytes that it reads from `budget_bytes`, and may overdraw it to 0
  // by one read. After kEnded it must not be called again.
  //
  // A stream that ends inside a message ends with {kPeerClosed, kTruncated}: most likely the peer
  // was killed, so this is a loss and not a breach of protocol.
  Result Receive(ByteStream& stream, std::span<const LandingSlot> landing, bool& readable,
                 std::size_t& budget_bytes);

  // P1, R1 and R2 of docs/internals/invariants.md.
  void CheckInvariants() const;

  // Ends a loan. Ignores what is not lent by this receiver.
  void Release(const ReceivedMessage* message);

  // Is a message partly received? More of it is sure to come, or the end of the stream.
  bool inside_message() const { return message_ != nullptr; }
  std::uint32_t lent_count() const { return pool_.lent_count(); }

 private:
  static constexpr std::size_t kStashBytes = 8 * wire::kHeaderBytes;  // behind a payload
  static constexpr std::size_t kFirstBytes = 4096 + kStashBytes;      // where no payload is awaited

  std::size_t stash_size() const { return stash_end_ - stash_begin_; }
  bool ReadHeader(ByteStream& stream, bool& readable, std::size_t& budget_bytes, Result& ended);
  bool ReadPayload(ByteStream& stream, bool& readable, std::size_t& budget_bytes, Result& ended);
  bool Account(const IoResult& io, bool& readable, std::size_t& budget_bytes, Result& ended) const;
  ProtocolError StartMessage(std::span<const LandingSlot> landing);
  ProtocolError CheckLanding(std::span<const LandingSlot> landing) const;
  void TakeStashedPayload();

  MessagePool pool_;

  // The message that is being received: taken from pool_ when its header was accepted.
  ReceivedMessage* message_ = nullptr;
  std::byte* payload_ = nullptr;  // where its payload goes
  std::size_t payload_have_ = 0;

  std::size_t stash_begin_ = 0;
  std::size_t stash_end_ = 0;
  std::array<std::byte, kFirstBytes> stash_;
};

}  // namespace phub::transport
