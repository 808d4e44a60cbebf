// The sending half of a verbs lane: a bounded queue of requests, which become work requests when
// the queue pair, the peer's inbox and the peer's receives have room. The size is fixed at
// construction; nothing allocates after that. One thread.
//
// Three paths for a message:
// - A gradient is written to its staging slot: header and payload in one write with immediate.
// - A reply is written to the worker's parameters, if the worker has given an address: its payload
//   in one write with immediate, which identifies the reply.
// - Other messages (credits, records, pulls; payload whose destination is not registered) are sent
//   to the peer's inbox, in pieces if they are long.
// Payload in registered memory is sent from there; other payload is copied once, to the outbox.
//
// Invariant: reported <= completed <= written <= tail, and tail - reported <= capacity. Requests
// before `written` were posted to the queue pair; those before `completed` were reported as sent by
// it; those before `reported` are forgotten.
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

// kDialer: the dialling end of a lane between two daemons. Its other end is a kDaemon.
enum class VerbsEnd : std::uint8_t { kDaemon, kClient, kDialer };

struct VerbsQueuePairLimits {
  std::uint32_t requests = 0;      // work requests in flight
  std::uint32_t inline_bytes = 0;  // granted by the device
  std::uint64_t message_bytes = 0;
};

// The connection's memory that its own device reads from.
struct VerbsSendMemory {
  std::byte* heads = nullptr;  // kHeadBytes for every request of the queue
  std::byte* outbox = nullptr;
  std::uint32_t outbox_bytes = 0;
  std::uint32_t local_key = 0;  // for heads and outbox
};

class VerbsSender {
 public:
  static constexpr std::size_t kHeadBytes = 192;  // header and inline payload; whole cache lines
  static_assert(kHeadBytes >= wire::kHeaderBytes + wire::kInlineBytesMax);
  // Work requests reserved for kTaken messages of the receiving half.
  static constexpr std::uint32_t kTakenReserve = 4;

  VerbsSender(VerbsEnd end, std::uint32_t capacity, const VerbsSendMemory& memory,
              std::shared_ptr<const VerbsDomain> domain, const VerbsQueuePairLimits& limits);

  // Records that a caller was refused: see TakeRefused.
  bool full() const {
    if (tail_ - reported_ < capacity_) return false;
    refused_ = true;
    return true;
  }
  // Whether full() has returned true since the last call.
  bool TakeRefused() { return std::exchange(refused_, false); }
  bool has_unsent() const { return written_ != tail_; }
  bool has_unreported() const { return reported_ != completed_; }

  // Sets the peer's offer; call it before anything is sent.
  void SetPeer(const wire::VerbsOffer& offer);
  // Sets the peer's keys. Nothing is sent before that. (A client gets the keys on the lane.)
  void SetKeys(std::uint32_t inbox_key, std::uint32_t slots_key) {
    inbox_key_ = inbox_key;
    slots_key_ = slots_key;
    has_keys_ = true;
  }
  bool has_keys() const { return has_keys_; }
  // Adds a region of the peer's memory to which replies may be written. False if it is invalid.
  bool AddPeerRegion(const wire::VerbsControl& control);
  // Whether replies can be written to that address.
  bool HasPeerPlace(SharedAddress address, std::size_t bytes) const;
  // Sends `control` before anything else on the lane.
  void Announce(const wire::VerbsControl& control);

  // Requires !full(). `header` is encoded, and its reply_address may differ from the request's.
  // Payload of records is copied; other payload is lent until the request is reported.
  void Push(std::span<const std::byte, wire::kHeaderBytes> header, const SendRequest& request);
  // Undoes the last Push; there must have been no Flush since.
  void PopBack();

  // Posts until the queue is empty, there is no room, or the budget is used up. Subtracts the bytes
  // that it copies or posts from the budget. False if the queue pair rejects a request.
  bool Flush(ibv_qp* queue_pair, std::uint64_t work_request_id, std::size_t& budget_bytes,
             VerbsCounters& counters, WorkRequestObserver* observer);
  // Whether Flush could make progress.
  bool CanFlush() const;
  // Sends kTaken to the peer. False if the queue pair rejects the request.
  bool SendTaken(ibv_qp* queue_pair, std::uint64_t work_request_id, std::uint32_t immediate,
                 VerbsCounters& counters, WorkRequestObserver* observer);
  // The number of completed work requests, and whether others are in flight.
  std::uint64_t posted_count() const { return posted_; }  // work requests so far
  std::uint64_t done() const { return done_; }
  bool has_posted() const { return posted_ != done_; }
  bool CanSendTaken() const { return posted_ - done_ < limits_.requests; }

  // Handles the completion of a signaled work request. Forgets leading requests without
  // notify_sent.
  void OnCompletion();
  // Handles the totals in the peer's kTaken, modulo 2^15. kBroken if they are impossible.
  enum class Taken : std::uint8_t { kNothingNew, kMore, kBroken };
  Taken OnTaken(std::uint32_t messages, std::uint32_t units);

  // Returns the next sent request with notify_sent. Also forgets sent requests without it.
  bool NextSent(std::uint64_t& cookie);
  // Checks Q1, V1, V2 and V3 of docs/internals/invariants.md.
  void CheckInvariants() const;
  // Drops the requests that are not known to be sent.
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
  // The positions that are reached when a signaled work request completes.
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
  // The state of the request at `written_`, which may be partly posted.
  struct Front {
    Way way = Way::kUndecided;
    bool registered = false;  // the payload is in registered memory
    bool head_only = false;   // the payload was written; its header follows through the inbox
    std::uint32_t local_key = 0;
    std::uint64_t remote = 0;
    std::uint32_t remote_key = 0;
    std::size_t put = 0;  // bytes of head and payload that were posted
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
  std::uint32_t announced_regions_ = 0;  // regions of the domain that were announced

  std::uint64_t reported_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t tail_ = 0;
  Front front_;
  std::size_t step_bytes_ = 0;  // bytes in the last added work request
  mutable std::uint32_t region_hint_ = 0;

  std::uint64_t posted_ = 0;  // work requests
  std::uint64_t done_ = 0;
  std::uint64_t signals_put_ = 0;
  std::uint64_t signals_taken_ = 0;

  std::uint64_t messages_sent_ = 0;
  std::uint64_t messages_taken_ = 0;
  std::uint64_t units_sent_ = 0;  // units of the peer's inbox, including skipped ones
  std::uint64_t units_taken_ = 0;
  std::uint64_t outbox_put_ = 0;  // bytes of the outbox, including skipped ones
  std::uint64_t outbox_done_ = 0;
  mutable bool refused_ = false;
  bool blocked_ = false;  // Flush found no room; reset by a completion or OnTaken
};

}  // namespace phub::transport
