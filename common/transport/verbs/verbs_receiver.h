// The receiving half of a verbs lane: arrivals become messages.
//
// Arrivals are noted as the completion queue tells of them, and turned into messages in the
// connection's turn. What an immediate names is checked; headers are copied to private memory once
// and then judged, as the peer may write to inbox and slots at any time. Messages come from a fixed
// set and are lent until Release; when all are lent nothing more is taken (kStarved), and the peer,
// who is told what was taken, is held back. Nothing allocates after construction. One thread.
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

// Where peers write to.
struct VerbsReceiveMemory {
  std::byte* inbox = nullptr;
  std::uint32_t inbox_bytes = 0;  // a power of two
  // The daemon's staging: slot i is a header and then slot_bytes, see wire::VerbsOffer.
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
    kMessage,  // a whole message; lent until Release
    kBlocked,  // nothing more has arrived
    kStarved,  // every message is lent
    kYield,    // the byte budget is used up
    kBroken,   // the peer broke the lane's form; error says how. Not to be called again
  };
  struct Result {
    Outcome outcome = Outcome::kBlocked;
    ProtocolError error = ProtocolError::kNone;
    const ReceivedMessage* message = nullptr;
  };

  VerbsReceiver(VerbsEnd end, const VerbsReceiveMemory& memory, std::uint32_t messages_max,
                std::uint32_t received_lent);

  // A client asks for a chunk: what the reply to it will say. `header` of a gradient or a pull.
  void NoteAsked(const wire::MessageHeader& header);

  // Notes a message (not kTaken) that has arrived, in the order of arrival. Fills `control` and
  // sets has_control if it is one.
  ProtocolError Arrived(std::uint32_t immediate, std::uint32_t bytes, wire::VerbsControl& control,
                        bool& has_control);
  // Goes on until one of the outcomes. Takes the bytes that it copies from `budget_bytes`, and may
  // overdraw it to 0 by one piece.
  Result Receive(std::span<const LandingSlot> landing, std::size_t& budget_bytes,
                 VerbsCounters& counters);
  bool HasMore() const { return arrivals_put_ != arrivals_taken_; }
  // A message is half received.
  bool inside_message() const { return message_ != nullptr; }

  // Receives that were used up and are to be posted again, since the last call.
  std::uint32_t TakeUsedReceives();
  void NoteReceiveUsed() { ++receives_used_; }
  // Enough was taken since the peer was last told that it should be told.
  bool WantsToTell() const;
  // What to tell it.
  std::uint32_t TellTaken();

  // P1, V4 and R2 of docs/internals/invariants.md.
  void CheckInvariants() const;

  void Release(const ReceivedMessage* message) {
    if (message != message_) pool_.Release(message);
  }

 private:
  struct Arrival {
    std::uint32_t immediate = 0;
    std::uint32_t bytes = 0;
    std::uint32_t units = 0;  // of the inbox, with what was skipped before it
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
  const MappedMemory asked_memory_;  // Asked[chunk], of a client: pages are taken as chunks come

  std::uint64_t units_arrived_ = 0;
  std::uint64_t units_taken_ = 0;
  std::uint64_t messages_taken_ = 0;
  std::uint64_t units_told_ = 0;
  std::uint64_t messages_told_ = 0;
  std::uint32_t receives_used_ = 0;
  std::uint64_t incarnation_ = 0;
  std::uint32_t membership_epoch_ = 0;

  // The message whose payload still comes through the inbox.
  ReceivedMessage* message_ = nullptr;
  std::byte* destination_ = nullptr;
  std::size_t payload_have_ = 0;
};

}  // namespace phub::transport
