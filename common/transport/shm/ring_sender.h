// The sending half of a lane in shared memory: a bounded queue of requests in private memory, which
// are moved to the ring when it has room. The size is fixed at construction; nothing allocates
// after that. One thread.
//
// Invariant: reported <= written <= tail, and tail - reported <= capacity. Requests before
// `written` were sent completely; those before `reported` are forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/transport/shm/ring.h"
#include "common/transport/transport.h"

namespace phub::transport {

class RingSender {
 public:
  struct Placement {
    PayloadPlace place = PayloadPlace::kNone;
    SharedAddress address{};
  };

  RingSender(const Ring& ring, std::uint32_t capacity);

  bool full() const { return tail_ - reported_ == capacity_; }
  bool has_unsent() const { return written_ != tail_; }
  bool has_unreported() const { return reported_ != written_; }

  // Requires !full(). Payload for the record is copied. Payload for the arena is lent until the
  // request is reported.
  void Push(std::span<const std::byte, wire::kHeaderBytes> header, Placement placement,
            std::span<const std::byte> payload, std::uint64_t cookie, bool notify_sent);
  // Undoes the last Push; there must have been no Flush since.
  void PopBack();

  // Moves requests to the ring until the queue is empty, the ring is full, or the budget is used
  // up. Subtracts the bytes that it copies from the budget. False if the peer's indices are
  // invalid.
  bool Flush(std::size_t& budget_bytes);
  // Whether Flush could make progress. If the last Flush found no room, only after the peer has
  // read something.
  bool CanFlush() const { return has_unsent() && (!blocked_ || PeersPosition() != taken_); }
  // Whether to ring the peer, after a Flush that published something.
  enum class Bell : std::uint8_t {
    kNo,
    kNow,    // returned once for each time that the peer went to sleep
    kLater,  // the peer sleeps, and awaits more messages than there are
  };
  // `hurry`: ring a peer that sleeps and has not read everything, even if it awaits more messages.
  Bell TakePeerSleeps(bool hurry);

  // Announces whether this end sleeps until there is room.
  void SetSleeps(bool sleeps);
  // Shows the peer, when it looks, that this end is alive.
  void KeepAlive();

  // Returns the next request with notify_sent that was sent completely. Also forgets sent requests
  // without notify_sent, so call it until it returns false.
  bool NextSent(std::uint64_t& cookie);
  // Drops the requests that were not sent completely.
  void DropUnsent();

  // Checks Q1, G1 and G2 of docs/internals/invariants.md.
  void CheckInvariants() const;

  // The position that the peer has published; unchecked.
  RingPosition PeersPosition() const;

 private:
  struct Request {  // not initialized before Push, so that unused requests use no memory pages
    RingRecord record;
    const std::byte* arena_payload;
    std::size_t arena_bytes;
    std::uint64_t cookie;
    bool notify_sent;
  };

  bool LookForRoom();
  std::size_t PutBytes(std::span<const std::byte> bytes);
  void Publish();
  bool HasWhatIsAwaited() const;
  Request& at(std::uint64_t position) const { return requests_[position % capacity_]; }

  const Ring ring_;
  const std::uint64_t capacity_;
  const std::unique_ptr<Request[]> requests_;
  std::uint64_t reported_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t tail_ = 0;
  bool front_recorded_ = false;  // the record of the request at `written_` is in the ring
  std::size_t front_put_ = 0;    // bytes of its payload that are in the arena

  RingPosition put_{};        // what is in the ring
  RingPosition published_{};  // the last published value of put_
  RingPosition taken_{};      // what the peer has read; may be outdated
  bool blocked_ = false;      // the last Flush found no room
  bool unannounced_ = false;  // published since the peer was last rung or was found awake
  std::uint32_t alive_ = 0;   // the last published count of KeepAlive
};

}  // namespace phub::transport
