// The sending half of the framing: a bounded queue of requests, written to one stream in order,
// many per call. Sized when built; nothing allocates after that. One thread.
//
// Invariant: reported <= written <= tail, and tail - reported <= capacity. Requests before
// `written` have left whole; those before `reported` are forgotten.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/transport/stream/byte_stream.h"
#include "common/transport/transport.h"

namespace phub::transport {

// One call gathers about this much when that much is queued: below 512 KiB the cost of a call
// shows (32 KiB calls take half as much CPU again per byte as 1 MiB calls).
inline constexpr std::size_t kGatherBytes = 1024 * 1024;
static_assert(kGatherBytes >= 512 * 1024);

class StreamSender {
 public:
  explicit StreamSender(std::uint32_t capacity);

  bool full() const { return tail_ - reported_ == capacity_; }
  bool has_unsent() const { return written_ != tail_; }
  bool has_unreported() const { return reported_ != written_; }

  // Requires !full(). `head` is the encoded header; `inline_payload` is copied behind it; `payload`
  // is lent until it is reported.
  void Push(std::span<const std::byte, wire::kHeaderBytes> head,
            std::span<const std::byte> inline_payload, std::span<const std::byte> payload,
            std::uint64_t cookie, bool notify_sent);
  // Undoes the last Push, with no Flush in between.
  void PopBack();

  // Writes until the stream is drained, the queue is empty or the budget used up. Clears `writable`
  // when the stream is drained. False if the stream failed.
  bool Flush(ByteStream& stream, bool& writable, std::size_t& budget_bytes);

  // The next request that left whole and asked to be told. Also forgets those that did not ask, so
  // call it until it says false.
  bool NextSent(std::uint64_t& cookie);

  // Q1, Q2 of docs/internals/invariants.md.
  void CheckInvariants() const;

  // Forgets what has not left whole.
  void DropUnsent() {
    tail_ = written_;
    front_sent_ = 0;
  }

 private:
  struct Request {
    std::array<std::byte, wire::kHeaderBytes + wire::kInlineBytesMax> head;
    std::uint32_t head_bytes = 0;
    bool notify_sent = false;
    std::span<const std::byte> payload;
    std::uint64_t cookie = 0;

    std::size_t bytes() const { return head_bytes + payload.size(); }
  };

  std::size_t Gather(std::span<iovec> parts, std::size_t& bytes) const;
  void Advance(std::size_t bytes);
  Request& at(std::uint64_t position) const { return requests_[position % capacity_]; }

  const std::uint64_t capacity_;
  const std::unique_ptr<Request[]> requests_;
  std::uint64_t reported_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t tail_ = 0;
  std::size_t front_sent_ = 0;  // bytes of the request at `written_` that have left
};

}  // namespace phub::transport
