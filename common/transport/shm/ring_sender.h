// The sending half of a lane in shared memory: a bounded queue of requests in private memory, moved
// into the ring as it has room. Sized when built; nothing allocates after that. One thread.
//
// Invariant: reported <= written <= tail, and tail - reported <= capacity. Requests before
// `written` have left whole; those before `reported` are forgotten.
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

  // Requires !full(). Payload that is placed in the record is copied; in the arena, lent until it
  // is reported.
  void Push(std::span<const std::byte, wire::kHeaderBytes> header, Placement placement,
            std::span<const std::byte> payload, std::uint64_t cookie, bool notify_sent);
  // Undoes the last Push, with no Flush in between.
  void PopBack();

  // Moves requests until the queue is empty, the ring is full or the budget is used up; takes the
  // bytes that it copies from the budget. False if the peer's indices make no sense.
  bool Flush(std::size_t& budget_bytes);
  // Would Flush do something? Not after it found no room, until the peer has made some.
  bool CanFlush() const { return has_unsent() && (!blocked_ || PeersPosition() != taken_); }
  // Whether the peer is to be rung, after a Flush that published something.
  enum class Bell : std::uint8_t {
    kNo,
    kNow,    // once for each time that it went to sleep
    kLater,  // it sleeps, and awaits more than is there
  };
  // `hurry`: rings whoever sleeps and has not read everything, however much more it awaits.
  Bell TakePeerSleeps(bool hurry);

  // Says that this end sleeps and waits for room, or no more.
  void SetSleeps(bool sleeps);

  // The next request that left whole and asked to be told. Also forgets those that did not ask, so
  // call it until it says false.
  bool NextSent(std::uint64_t& cookie);
  // Forgets what has not left whole.
  void DropUnsent();

  // Q1, G1 and G2 of docs/internals/invariants.md.
  void CheckInvariants() const;

  // What the peer says it has read; unchecked.
  RingPosition PeersPosition() const;

 private:
  struct Request {  // nothing is set before Push does, so that what was never used takes no pages
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
  RingPosition published_{};  // what the peer was told
  RingPosition taken_{};      // what the peer has read, when last looked at
  bool blocked_ = false;      // the last Flush found no room
  bool unannounced_ = false;  // published since the peer was last rung, or found awake
};

}  // namespace phub::transport
