// A transport whose far ends are the bench. Payload arrives from a small buffer, as from a network
// card's ring, into the landing slots, and leaves into another one: a copy each, where a daemon's
// system calls or its device would move the data. One thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/transport/transport.h"

namespace phub::bench {

class WireTransport final : public transport::Transport {
 public:
  class Endpoint final : public transport::Connection {};

  WireTransport() : wire_(kWireBytes), sink_(kWireBytes) { lent_.reserve(kLentMax); }

  // A message of a far end, delivered by a later Poll.
  void Deliver(transport::ConnectionId to, const wire::MessageHeader& header) {
    inbox_.push_back({to, header});
  }
  bool HasInput() const { return !inbox_.empty() || !unsent_.empty(); }
  transport::ConnectionId last_adopted() const {
    return {static_cast<std::uint32_t>(landing_.size() - 1), 1};
  }

  transport::ConnectionId Adopt(transport::Connection&,
                                std::span<const transport::LandingSlot> landing) override {
    landing_.push_back(landing);
    return last_adopted();
  }
  void SetLanding(transport::ConnectionId id,
                  std::span<const transport::LandingSlot> landing) override {
    landing_[id.index] = landing;
  }
  void Close(transport::ConnectionId) override {}
  std::size_t Post(std::span<const transport::SendRequest> requests) override {
    for (const transport::SendRequest& request : requests) {
      for (const transport::ConnectionId& id : request.connections) {
        for (std::size_t at = 0; at < request.payload.size(); at += kWireBytes) {
          std::memcpy(sink_.data(), request.payload.data() + at,
                      std::min(kWireBytes, request.payload.size() - at));
        }
        if (request.notify_sent) unsent_.push_back({id, request.cookie});
      }
    }
    return requests.size();
  }
  std::size_t Poll(std::span<transport::Completion> completions) override {
    std::size_t count = 0;
    lent_.clear();
    for (; !unsent_.empty() && count < completions.size(); unsent_.pop_front()) {
      completions[count] = {};
      completions[count].kind = transport::CompletionKind::kSent;
      completions[count].connection = unsent_.front().first;
      completions[count++].cookie = unsent_.front().second;
    }
    for (; !inbox_.empty() && count < completions.size() && lent_.size() < kLentMax;
         inbox_.pop_front()) {
      const auto& [id, header] = inbox_.front();
      transport::ReceivedMessage& message = lent_.emplace_back();
      message.header = header;
      message.payload = Land(landing_[id.index][header.slot.value], header.payload_bytes);
      completions[count] = {};
      completions[count].connection = id;
      completions[count++].message = &message;
    }
    return count;
  }
  void Release(std::span<const transport::Completion>) override {}
  bool Arm() override { return !HasInput(); }
  int descriptor() const override { return -1; }
  void Tick(TimeNs) override {}

 private:
  static constexpr std::size_t kWireBytes = 64 << 10;
  static constexpr std::size_t kLentMax = 64;

  const std::byte* Land(const transport::LandingSlot& slot, std::size_t bytes) {
    PHUB_CHECK(slot.data != nullptr && bytes <= slot.bytes_max, "bytes={}", bytes);
    for (std::size_t at = 0; at < bytes; at += kWireBytes) {
      std::memcpy(slot.data + at, wire_.data(), std::min(kWireBytes, bytes - at));
    }
    return slot.data;
  }

  std::vector<std::byte> wire_, sink_;
  std::vector<std::span<const transport::LandingSlot>> landing_;
  std::deque<std::pair<transport::ConnectionId, wire::MessageHeader>> inbox_;
  std::deque<std::pair<transport::ConnectionId, std::uint64_t>> unsent_;
  std::vector<transport::ReceivedMessage> lent_;
};

}  // namespace phub::bench
