#include "common/transport/stream/sender.h"

#include <limits.h>

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace phub::transport {
namespace {

constexpr std::size_t kPartsMax = IOV_MAX;

iovec Part(std::span<const std::byte> bytes) {
  // iovec has no const form; writing does not change what it points to.
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace

StreamSender::StreamSender(std::uint32_t capacity)
    : capacity_(capacity), requests_(std::make_unique<Request[]>(capacity)) {
  PHUB_CHECK(capacity > 0);
}

void StreamSender::Push(std::span<const std::byte, wire::kHeaderBytes> head,
                        std::span<const std::byte> inline_payload,
                        std::span<const std::byte> payload, std::uint64_t cookie,
                        bool notify_sent) {
  PHUB_CHECK(!full(), "capacity={}", capacity_);
  PHUB_CHECK(inline_payload.size() <= wire::kInlineBytesMax, "bytes={}", inline_payload.size());
  Request& request = at(tail_++);
  std::memcpy(request.head.data(), head.data(), head.size());
  if (!inline_payload.empty()) {
    std::memcpy(request.head.data() + head.size(), inline_payload.data(), inline_payload.size());
  }
  request.head_bytes = static_cast<std::uint32_t>(head.size() + inline_payload.size());
  request.notify_sent = notify_sent;
  request.payload = payload;
  request.cookie = cookie;
}

void StreamSender::PopBack() {
  PHUB_CHECK(tail_ > written_ + (front_sent_ > 0 ? 1 : 0));
  --tail_;
}

bool StreamSender::Flush(ByteStream& stream, bool& writable, std::size_t& budget_bytes) {
  iovec parts[kPartsMax];
  while (writable && has_unsent() && budget_bytes > 0) {
    std::size_t bytes = 0;
    const std::size_t count = Gather(parts, bytes);
    const IoResult io = stream.Writev({parts, count});
    if (io.status == IoStatus::kReset || io.status == IoStatus::kClosed) return false;
    PHUB_CHECK(io.bytes <= bytes, "bytes={} asked={}", io.bytes, bytes);
    if (io.status == IoStatus::kDrained) writable = false;
    Advance(io.bytes);
    budget_bytes -= std::min(budget_bytes, io.bytes);
  }
  return true;
}

// Fills `parts` from the front of the queue, up to kGatherBytes; returns the number of parts.
std::size_t StreamSender::Gather(std::span<iovec> parts, std::size_t& bytes) const {
  std::size_t count = 0;
  std::size_t skip = front_sent_;
  for (std::uint64_t i = written_; i != tail_; ++i) {
    if (bytes >= kGatherBytes || count + 2 > parts.size()) break;
    const Request& request = at(i);
    const std::span<const std::byte> head(request.head.data(), request.head_bytes);
    const std::size_t skip_head = std::min(skip, head.size());
    const std::size_t skip_payload = skip - skip_head;
    if (skip_head < head.size()) parts[count++] = Part(head.subspan(skip_head));
    if (skip_payload < request.payload.size()) {
      parts[count++] = Part(request.payload.subspan(skip_payload));
    }
    bytes += request.bytes() - skip;
    skip = 0;
  }
  return count;
}

void StreamSender::Advance(std::size_t bytes) {
  front_sent_ += bytes;
  while (has_unsent() && front_sent_ >= at(written_).bytes()) {
    front_sent_ -= at(written_).bytes();
    ++written_;
  }
}

void StreamSender::CheckInvariants() const {
  PHUB_CHECK(reported_ <= written_ && written_ <= tail_ && tail_ - reported_ <= capacity_,
             "Q1 reported={} written={} tail={} capacity={}", reported_, written_, tail_,
             capacity_);
  PHUB_CHECK(front_sent_ == 0 || (has_unsent() && front_sent_ < at(written_).bytes()),
             "Q2 front_sent={}", front_sent_);
}

bool StreamSender::NextSent(std::uint64_t& cookie) {
  while (has_unreported()) {
    const Request& request = at(reported_++);
    if (!request.notify_sent) continue;
    cookie = request.cookie;
    return true;
  }
  return false;
}

}  // namespace phub::transport
