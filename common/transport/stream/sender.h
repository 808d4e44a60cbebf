// The sending half of the framing: a bounded queue of requests, written to one stream in order,
// many with each system call. The size is fixed at construction; nothing allocates after that. One
// thread.
//
// Invariant: reported <= written <= tail, and tail - reported <= capacity. Requests before
// `written` were sent completely; those before `reported` are forgotten.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/transport/stream/byte_stream.h"
#include "common/transport/transport.h"

namespace phub::transport {

// One system call writes about this much, if that much is queued. Below 512 KiB the cost of a call
// is noticeable: calls of 32 KiB take 1.5 times as much CPU per byte as calls of 1 MiB.
inline constexpr std::size_t kGatherBytes = 1024 * 1024;
static_assert(kGatherBytes >= 512 * 1024);

class StreamSender {
 public:
  explicit StreamSender(std::uint32_t capacity);

  bool full() const { return tail_ - reported_ == capacity_; }
  bool has_unsent() const { return written_ != tail_; }
  bool has_unreported() const { return reported_ != written_; }
  std::uint64_t pushed_count() const { return tail_; }  // requests so far

  // Requires !full(). `head` is the encoded header. `inline_payload` is copied behind it. `payload`
  // is lent until the request is reported.
  void Push(std::span<const std::byte, wire::kHeaderBytes> head,
            std::span<const std::byte> inline_payload, std::span<const std::byte> payload,
            std::uint64_t cookie, bool notify_sent);
  // Undoes the last Push; there must have been no Flush since.
  void PopBack();

  // Writes until the stream is drained, the queue is empty, or the budget is used up. Clears
  // `writable` when the stream is drained. False if the stream failed.
  bool Flush(ByteStream& stream, bool& writable, std::size_t& budget_bytes);

  // Returns the next request with notify_sent that was sent completely. Also forgets sent requests
  // without notify_sent, so call it until it returns false.
  bool NextSent(std::uint64_t& cookie);

  // Checks Q1 and Q2 of docs/internals/invariants.md.
  void CheckInvariants() const;

  // Drops the requests that were not sent completely.
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
  std::size_t front_sent_ = 0;  // bytes of the request at `written_` that were sent
};

}  // namespace phub::transport
