// Whether the first gRPC message of a call has arrived: one byte of flags, four bytes with its
// length, then the message. Until then gRPC keeps the call waiting.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/clock.h"

namespace phub::server {

class RequestStart {
 public:
  void Begin(TimeNs now) { begun_at_ = heard_at_ = now; }
  void Take(std::string_view bytes, TimeNs now) {
    heard_at_ = now;
    while (!bytes.empty() && prefix_bytes_ < kPrefixBytes) {
      const auto byte = static_cast<std::uint8_t>(bytes.front());
      if (prefix_bytes_++ > 0) left_ = left_ << 8 | byte;
      bytes.remove_prefix(1);
    }
    left_ -= prefix_bytes_ < kPrefixBytes ? 0 : std::min<std::uint64_t>(left_, bytes.size());
  }
  bool whole() const { return prefix_bytes_ == kPrefixBytes && left_ == 0; }
  // The client could not send: what it has sent waits here.
  void Excuse(TimeNs now) { heard_at_ = now; }
  TimeNs begun_at() const { return begun_at_; }
  TimeNs heard_at() const { return heard_at_; }

 private:
  static constexpr std::size_t kPrefixBytes = 5;
  TimeNs begun_at_ = 0;
  TimeNs heard_at_ = 0;
  std::size_t prefix_bytes_ = 0;
  std::uint64_t left_ = 0;  // bytes of the message; while the prefix is incomplete, its length
};

}  // namespace phub::server
