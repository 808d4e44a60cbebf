// The receiving half of a lane in shared memory: records of the ring become messages.
//
// A record is copied to private memory once and then judged; indices likewise. Payload that lies in
// a region or in its slot is not touched; what comes through the arena is copied to its slot.
// Messages come from a fixed set and are lent until Release; when all are lent, nothing more is
// taken (kStarved), the ring fills, and the peer is held back. Nothing here allocates after
// construction, and nothing is sized by what a peer says. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/transport/message_pool.h"
#include "common/transport/shm/ring.h"
#include "common/transport/shm/shared_regions.h"
#include "common/transport/transport.h"

namespace phub::transport {

// A receiver's staging slots that the sender maps too: slot i at i * slot_bytes.
struct SharedSlots {
  std::byte* data = nullptr;  // null: there are none
  std::uint32_t count = 0;
  std::uint32_t bytes = 0;  // of each

  std::byte* slot(SlotIndex index) const {
    return index.value < count ? data + std::size_t{index.value} * bytes : nullptr;
  }
};

class RingReceiver {
 public:
  enum class Outcome : std::uint8_t {
    kMessage,  // a whole message; lent until Release
    kBlocked,  // the ring has no more for now
    kStarved,  // every message is lent
    kYield,    // the byte budget is used up
    kBroken,   // the peer broke the lane's form; error says how. Not to be called again
  };
  struct Result {
    Outcome outcome = Outcome::kBlocked;
    ProtocolError error = ProtocolError::kNone;
    const ReceivedMessage* message = nullptr;
  };

  // `regions` may be null; `slots` are this end's own.
  RingReceiver(const Ring& ring, const SharedSlots& slots, const SharedRegions* regions,
               std::uint32_t message_count);

  // Goes on until one of the outcomes. Takes the bytes that it copies from `budget_bytes`, and may
  // overdraw it to 0 by one payload.
  Result Receive(std::span<const LandingSlot> landing, std::size_t& budget_bytes);
  // After kBlocked: has the peer written since?
  bool HasMore() const;
  // A message is half received: what comes now belongs to its payload.
  bool inside_message() const { return message_ != nullptr; }

  // Tells the peer what was taken. Call it after a run of Receive.
  void Publish();
  // True once after each Publish that told something, if the peer sleeps until there is room.
  bool TakePeerSleeps();
  // Says that this end sleeps until there is more, and need not be rung before so many messages
  // more have come.
  void Sleep(std::uint32_t messages);
  void WakeUp();

  // Ends a loan. Ignores what is not lent by this receiver.
  void Release(const ReceivedMessage* message);

  // P1, G3 and R2 of docs/internals/invariants.md.
  void CheckInvariants() const;

  // What the peer says it has written; unchecked.
  RingPosition PeersPosition() const;

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
  RingPosition published_{};           // what the peer was told of it
  std::uint64_t written_records_ = 0;  // what the peer has written, checked, when last looked at
  bool unannounced_ = false;           // published since TakePeerSleeps

  // The record being judged.
  RingRecord record_{};
  const std::byte* source_ = nullptr;  // of its payload; null: the arena, or there is none

  // The message whose payload is still on its way through the arena.
  ReceivedMessage* message_ = nullptr;
  std::byte* destination_ = nullptr;
  std::size_t payload_have_ = 0;
};

}  // namespace phub::transport
