// The receiving half of a verbs lane: it turns arrivals into messages.
//
// Arrivals are recorded when the completion queue reports them, and become messages in the
// connection's turn. Immediates are checked. Headers are copied to private memory once and then
// checked, because the peer may write to inbox and slots at any time. Messages come from a pool of
// fixed size and are lent until Release. When all are lent, nothing more is received (kStarved),
// and the peer must wait, because its window is not extended. Nothing allocates after construction.
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/mapped_memory.h"
#include "common/transport/message_pool.h"
#include "common/transport/transport.h"
#include "common/transport/verbs/immediate.h"
#include "common/transport/verbs/verbs_sender.h"
#include "common/wire/verbs_lane.h"

namespace phub::transport {

// The memory that the peer writes to.
struct VerbsReceiveMemory {
  std::byte* inbox = nullptr;
  std::uint32_t inbox_bytes = 0;  // a power of two
  // The daemon's staging slots. Each is a header followed by slot_bytes, see wire::VerbsOffer.
  std::byte* slots = nullptr;
  std::uint32_t slot_count = 0;
  std::uint32_t slot_bytes = 0;

  std::byte* slot(std::uint32_t index) const {
    return slots + std::size_t{index} * (wire::kSlotHeaderBytes + slot_bytes);
  }
};

class VerbsReceiver {
 public:
  enum class Outcome : std::uint8_t {
    kMessage,  // a complete message; lent until Release
    kBlocked,  // nothing more has arrived
    kStarved,  // every message is lent
    kYield,    // the byte budget is used up
    kBroken,   // the peer violated the protocol, see `error`; do not call Receive again
  };
  struct Result {
    Outcome outcome = Outcome::kBlocked;
    ProtocolError error = ProtocolError::kNone;
    const ReceivedMessage* message = nullptr;
  };

  VerbsReceiver(VerbsEnd end, const VerbsReceiveMemory& memory, std::uint32_t messages_max,
                std::uint32_t received_lent);
  // False: the system gave no memory, and the receiver must not be used.
  bool has_memory() const { return end_ != VerbsEnd::kClient || asked_memory_; }

  // Records a client's request for a chunk (a gradient or a pull), to reconstruct the header of the
  // reply.
  void NoteAsked(const wire::MessageHeader& header);

  // Records an arrival (except kTaken); call it in the order of arrival. If the arrival is a
  // VerbsControl, sets has_control and fills in `control`.
  ProtocolError Arrived(std::uint32_t immediate, std::uint32_t bytes, wire::VerbsControl& control,
                        bool& has_control);
  // Runs until one of the outcomes. Subtracts the bytes that it copies from `budget_bytes`; the
  // last piece may exceed it.
  Result Receive(std::span<const LandingSlot> landing, std::size_t& budget_bytes,
                 VerbsCounters& counters);
  bool HasMore() const { return arrivals_put_ != arrivals_taken_; }
  // Whether a message is partly received.
  bool inside_message() const { return message_ != nullptr; }

  // The number of receives used since the last call, which must be posted again.
  std::uint32_t TakeUsedReceives();
  void NoteReceiveUsed() { ++receives_used_; }
  // Whether enough was received since the last TellTaken to send kTaken to the peer.
  bool WantsToTell() const;
  // The immediate to send: kTaken with the current totals.
  std::uint32_t TellTaken();

  // Checks P1, V4 and R2 of docs/internals/invariants.md.
  void CheckInvariants() const;

  void Release(const ReceivedMessage* message) {
    if (message != message_) pool_.Release(message);
  }

 private:
  struct Arrival {
    std::uint32_t immediate = 0;
    std::uint32_t bytes = 0;
    std::uint32_t units = 0;  // inbox units, including units that were skipped before it
  };
  struct Asked {
    Iteration iteration{};
    KeyIndex key{};
    bool open = false;
  };

  void TakeArrival();
  ProtocolError TakeSlot(const Arrival& arrival, std::span<const LandingSlot> landing);
  ProtocolError TakeReply(const Arrival& arrival, std::span<const LandingSlot> landing);
  ProtocolError StartInbox(const Arrival& arrival, std::span<const LandingSlot> landing,
                           std::size_t& budget_bytes, VerbsCounters& counters);
  ProtocolError ContinueInbox(const Arrival& arrival, std::span<const LandingSlot> landing,
                              std::size_t& budget_bytes, VerbsCounters& counters);
  ProtocolError LandInbox(const Arrival& arrival, std::span<const LandingSlot> landing,
                          ReceivedMessage& message);
  void CopyIn(const std::byte* from, std::size_t bytes, std::size_t& budget_bytes,
              VerbsCounters& counters);
  void StartMessage(const std::byte* payload, std::size_t payload_have);

  const VerbsEnd end_;
  const VerbsReceiveMemory memory_;
  const std::uint32_t messages_max_;
  MessagePool pool_;
  const std::unique_ptr<Arrival[]> arrivals_;  // a ring of messages_max
  std::uint64_t arrivals_put_ = 0;
  std::uint64_t arrivals_taken_ = 0;
  const MappedMemory asked_memory_;  // Asked[chunk] in a client; uses pages only for used chunks

  std::uint64_t units_arrived_ = 0;
  std::uint64_t units_taken_ = 0;
  std::uint64_t messages_taken_ = 0;
  std::uint64_t units_told_ = 0;
  std::uint64_t messages_told_ = 0;
  std::uint32_t receives_used_ = 0;
  std::uint64_t incarnation_ = 0;
  std::uint32_t membership_epoch_ = 0;

  // The message whose payload is not completely received from the inbox yet.
  ReceivedMessage* message_ = nullptr;
  std::byte* destination_ = nullptr;
  std::size_t payload_have_ = 0;
};

}  // namespace phub::transport
