// The sending half of a verbs lane: a bounded queue of requests, turned into work requests as the
// queue pair, the peer's inbox and the peer's receives have room. Sized when built; nothing
// allocates after that. One thread.
//
// Three ways for a message:
// - A gradient goes into its staging slot: header and payload in one write with immediate.
// - A reply goes into the worker's parameters, if the worker has named a place: the payload in one
//   write with immediate, which says enough for the worker to know what it is.
// - All else (credits, records, questions; payload whose destination is not registered) goes into
//   the peer's inbox, in pieces if it is long.
// Payload is read from where it lies if that is registered, else copied once, through the outbox.
//
// Invariant: reported <= completed <= written <= tail, and tail - reported <= capacity. Requests
// before `written` were handed to the queue pair; those before `completed` have left, as far as
// it has said; those before `reported` are forgotten.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "common/transport/transport.h"
#include "common/transport/verbs/request_batch.h"
#include "common/transport/verbs/verbs_counters.h"
#include "common/transport/verbs/verbs_domain.h"
#include "common/wire/verbs_lane.h"

namespace phub::transport {

// kDialer: the end of a lane between two daemons that asked for it. Its other end is a kDaemon.
enum class VerbsEnd : std::uint8_t { kDaemon, kClient, kDialer };

struct VerbsQueuePairLimits {
  std::uint32_t requests = 0;      // work requests under way
  std::uint32_t inline_bytes = 0;  // as granted
  std::uint64_t message_bytes = 0;
};

// Memory of a connection that its own device reads from.
struct VerbsSendMemory {
  std::byte* heads = nullptr;  // kHeadBytes for every request of the queue
  std::byte* outbox = nullptr;
  std::uint32_t outbox_bytes = 0;
  std::uint32_t local_key = 0;  // of both
};

class VerbsSender {
 public:
  static constexpr std::size_t kHeadBytes = 192;  // header and inline payload, of whole lines
  static_assert(kHeadBytes >= wire::kHeaderBytes + wire::kInlineBytesMax);
  // Kept free for what the receiving half has to say.
  static constexpr std::uint32_t kTakenReserve = 4;

  VerbsSender(VerbsEnd end, std::uint32_t capacity, const VerbsSendMemory& memory,
              std::shared_ptr<const VerbsDomain> domain, const VerbsQueuePairLimits& limits);

  // Whoever is told that it is, waits: see TakeRefused.
  bool full() const {
    if (tail_ - reported_ < capacity_) return false;
    refused_ = true;
    return true;
  }
  // Was full when somebody wanted to post, since the last call.
  bool TakeRefused() { return std::exchange(refused_, false); }
  bool has_unsent() const { return written_ != tail_; }
  bool has_unreported() const { return reported_ != completed_; }

  // What the peer has offered; before anything is sent.
  void SetPeer(const wire::VerbsOffer& offer);
  // Nothing leaves before the keys are known (a client's peer says them on the lane).
  void SetKeys(std::uint32_t inbox_key, std::uint32_t slots_key) {
    inbox_key_ = inbox_key;
    slots_key_ = slots_key;
    has_keys_ = true;
  }
  bool has_keys() const { return has_keys_; }
  // Memory that the peer will be written to by its own request. False if it makes no sense.
  bool AddPeerRegion(const wire::VerbsControl& control);
  // Whether replies can be written to that place.
  bool HasPeerPlace(SharedAddress address, std::size_t bytes) const;
  // Said before anything else on the lane.
  void Announce(const wire::VerbsControl& control);

  // Requires !full(). `header`, encoded, may name another reply_address than the request. Payload
  // of records is copied; other is lent until it is reported.
  void Push(std::span<const std::byte, wire::kHeaderBytes> header, const SendRequest& request);
  // Undoes the last Push, with no Flush in between.
  void PopBack();

  // Posts until the queue is empty, there is no room, or the budget is used up; what is copied or
  // posted is taken from the budget. False if the queue pair refuses.
  bool Flush(ibv_qp* queue_pair, std::uint64_t work_request_id, std::size_t& budget_bytes,
             VerbsCounters& counters, WorkRequestObserver* observer);
  // Would Flush do something?
  bool CanFlush() const;
  // Tells the peer what this end has taken. False if the queue pair refuses.
  bool SendTaken(ibv_qp* queue_pair, std::uint64_t work_request_id, std::uint32_t immediate,
                 VerbsCounters& counters, WorkRequestObserver* observer);
  // Work requests that are done, and whether some are not.
  std::uint64_t done() const { return done_; }
  bool has_posted() const { return posted_ != done_; }
  bool CanSendTaken() const { return posted_ - done_ < limits_.requests; }

  // A work request that asked for it is complete. Forgets at once those that nobody is told of.
  void OnCompletion();
  // What the peer says that it has taken, modulo 2^15. kBroken if that cannot be.
  enum class Taken : std::uint8_t { kNothingNew, kMore, kBroken };
  Taken OnTaken(std::uint32_t messages, std::uint32_t units);

  // The next request that left and asked to be told. Also forgets those that did not ask.
  bool NextSent(std::uint64_t& cookie);
  // Q1, V1, V2 and V3 of docs/internals/invariants.md.
  void CheckInvariants() const;
  // Forgets what has not left, as far as is known.
  void DropUnsent();

 private:
  enum class Way : std::uint8_t { kUndecided, kInbox, kSlot, kReply };
  struct Request {
    std::span<const std::byte> payload;
    std::uint64_t cookie = 0;
    SharedAddress reply_address{};
    Iteration iteration{};
    ChunkIndex chunk{};
    SlotIndex slot{};
    wire::MessageKind kind{};
    numeric::ElementType type{};
    bool notify_sent = false;
    std::uint32_t head_bytes = 0;
  };
  // What is known when a work request that asked for it is complete.
  struct Signal {
    std::uint64_t posted = 0;
    std::uint64_t written = 0;
    std::uint64_t outbox = 0;
  };
  struct PeerRegion {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint32_t key = 0;
  };
  // The request at `written_`, as far as it is on its way.
  struct Front {
    Way way = Way::kUndecided;
    bool registered = false;  // the payload is
    bool head_only = false;   // the payload is there already: the header follows, by the inbox
    std::uint32_t local_key = 0;
    std::uint64_t remote = 0;
    std::uint32_t remote_key = 0;
    std::size_t put = 0;  // bytes of head and payload
  };

  void Decide(const Request& request, VerbsCounters& counters);
  bool Step(RequestBatch& batch, std::size_t& budget_bytes, VerbsCounters& counters);
  bool StepControl(RequestBatch& batch);
  bool StepDirect(const Request& request, RequestBatch& batch, VerbsCounters& counters);
  bool StepInbox(const Request& request, RequestBatch& batch, VerbsCounters& counters);
  void AddParts(const Request& request, std::size_t head_bytes, std::size_t bytes,
                ibv_send_wr& work_request, VerbsCounters& counters);
  std::uint64_t PieceMax(const Request& request, std::size_t head_bytes) const;
  bool HasOutbox(std::size_t bytes) const;
  bool FindInbox(std::size_t bytes, std::uint32_t& unit, std::uint32_t& units) const;
  void Finish(VerbsCounters& counters);
  bool HasWindow() const { return messages_sent_ - messages_taken_ < peer_.messages_max; }
  bool HasRequests(const RequestBatch& batch) const {
    return posted_ + batch.size() + kTakenReserve - done_ < limits_.requests;
  }
  bool PostBatch(RequestBatch& batch, ibv_qp* queue_pair, std::uint64_t work_request_id,
                 VerbsCounters& counters, WorkRequestObserver* observer);
  std::byte* HeadOf(std::uint64_t position) const {
    return memory_.heads + position % capacity_ * kHeadBytes;
  }
  Request& at(std::uint64_t position) const { return requests_[position % capacity_]; }

  const VerbsEnd end_;
  const std::uint64_t capacity_;
  const VerbsSendMemory memory_;
  const std::shared_ptr<const VerbsDomain> domain_;
  const VerbsQueuePairLimits limits_;
  const std::unique_ptr<Request[]> requests_;
  const std::unique_ptr<Signal[]> signals_;  // a ring of limits_.requests
  const std::unique_ptr<PeerRegion[]> peer_regions_;
  std::uint32_t peer_region_count_ = 0;

  wire::VerbsOffer peer_;
  std::uint32_t inbox_key_ = 0;
  std::uint32_t slots_key_ = 0;
  bool has_keys_ = false;
  wire::VerbsControl announcement_;
  bool has_announcement_ = false;
  std::uint32_t announced_regions_ = 0;  // of the domain's

  std::uint64_t reported_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t tail_ = 0;
  Front front_;
  std::size_t step_bytes_ = 0;  // of the work request that was added last
  mutable std::uint32_t region_hint_ = 0;

  std::uint64_t posted_ = 0;  // work requests
  std::uint64_t done_ = 0;
  std::uint64_t signals_put_ = 0;
  std::uint64_t signals_taken_ = 0;

  std::uint64_t messages_sent_ = 0;
  std::uint64_t messages_taken_ = 0;
  std::uint64_t units_sent_ = 0;  // of the peer's inbox, with what is skipped at its end
  std::uint64_t units_taken_ = 0;
  std::uint64_t outbox_put_ = 0;  // bytes, with what is skipped at its end
  std::uint64_t outbox_done_ = 0;
  mutable bool refused_ = false;
  bool blocked_ = false;  // Flush found no room: until a completion or OnTaken
};

}  // namespace phub::transport
