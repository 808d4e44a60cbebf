// The receiving half of a lane in shared memory: it turns records of the ring into messages.
//
// A record is copied to private memory once and then checked; so are indices. Payload in a region
// or in its slot is not copied; payload in the arena is copied to its slot. Messages come from a
// pool of fixed size and are lent until Release. When all are lent, nothing more is received
// (kStarved), the ring fills up, and the peer must wait. Nothing allocates after construction, and
// no size depends on a peer's data. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/transport/message_pool.h"
#include "common/transport/shm/ring.h"
#include "common/transport/shm/shared_regions.h"
#include "common/transport/transport.h"

namespace phub::transport {

// A receiver's staging slots, which the sender maps too. Slot i is at offset i * bytes.
struct SharedSlots {
  std::byte* data = nullptr;  // null: no slots
  std::uint32_t count = 0;
  std::uint32_t bytes = 0;  // size of a slot

  std::byte* slot(SlotIndex index) const {
    return index.value < count ? data + std::size_t{index.value} * bytes : nullptr;
  }
};

class RingReceiver {
 public:
  enum class Outcome : std::uint8_t {
    kMessage,  // a complete message; lent until Release
    kBlocked,  // the ring has no more for now
    kStarved,  // every message is lent
    kYield,    // the byte budget is used up
    kBroken,   // the peer violated the protocol, see `error`; do not call Receive again
  };
  struct Result {
    Outcome outcome = Outcome::kBlocked;
    ProtocolError error = ProtocolError::kNone;
    const ReceivedMessage* message = nullptr;
  };

  // `regions` may be null; `slots` are this end's own.
  RingReceiver(const Ring& ring, const SharedSlots& slots, const SharedRegions* regions,
               std::uint32_t message_count);

  // Runs until one of the outcomes. Subtracts the bytes that it copies from `budget_bytes`; the
  // last payload may exceed it.
  Result Receive(std::span<const LandingSlot> landing, std::size_t& budget_bytes);
  // After kBlocked: whether the peer has written more since.
  bool HasMore() const;
  // Whether a message is partly received, so that the next bytes belong to its payload.
  bool inside_message() const { return message_ != nullptr; }

  // Publishes what was received, which makes room for the peer. Call it after a run of Receive.
  void Publish();
  // Whether to ring the peer, because it sleeps until there is room. True at most once after each
  // Publish that made room.
  bool TakePeerSleeps();
  // Announces that this end sleeps and need not be rung before this many more messages are there.
  void Sleep(std::uint32_t messages);
  void WakeUp();

  // Ends a loan. Ignores messages that this receiver has not lent.
  void Release(const ReceivedMessage* message);

  // Checks P1, G3 and R2 of docs/internals/invariants.md.
  void CheckInvariants() const;

  // The position that the peer has published; unchecked.
  RingPosition PeersPosition() const;
  // Changes whenever the peer has written anything, or shows that it is alive; unchecked.
  std::uint64_t PeersActivity() const;

 private:
  ProtocolError Start(std::span<const LandingSlot> landing, std::size_t& budget_bytes);
  ProtocolError FindSource(const RingRecord& record, const wire::MessageHeader& header,
                           const ReceivedMessage& message);
  ProtocolError Land(std::span<const LandingSlot> landing, ReceivedMessage& message,
                     std::size_t& budget_bytes);
  ProtocolError CheckLanding(std::span<const LandingSlot> landing) const;
  bool TakeBytes(std::size_t& budget_bytes, Result& stop);

  const Ring ring_;
  const SharedSlots slots_;
  const SharedRegions* const regions_;

  MessagePool pool_;

  RingPosition taken_{};               // what this end has read
  RingPosition published_{};           // the last published value of taken_
  std::uint64_t written_records_ = 0;  // records written by the peer; checked, may be outdated
  bool unannounced_ = false;           // published since TakePeerSleeps

  // The record being checked.
  RingRecord record_{};
  const std::byte* source_ = nullptr;  // its payload; null: in the arena, or no payload

  // The message whose payload is not completely received from the arena yet.
  ReceivedMessage* message_ = nullptr;
  std::byte* destination_ = nullptr;
  std::size_t payload_have_ = 0;
};

}  // namespace phub::transport
