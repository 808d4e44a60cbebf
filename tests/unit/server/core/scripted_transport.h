// A transport whose far end is the test: it injects messages, and keeps posted messages for
// inspection. Follows the rules of transport.h: lending, kSent only on request, kClosed once.
#pragma once

#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "common/transport/transport.h"

namespace phub {

class ScriptedTransport final : public transport::Transport {
 public:
  struct Posted {
    transport::ConnectionId connection;
    wire::MessageHeader header;
    std::vector<float> payload;
    const std::byte* from = nullptr;  // the address of the payload
    std::vector<std::byte> bytes;     // the payload
  };
  class Endpoint final : public transport::Connection {
   public:
    void LimitUnsent(std::uint32_t bytes) override { unsent_max = bytes; }
    std::uint32_t unsent_max = 0;  // the last one that was set; 0: the default
  };

  // ---- the test's side ----
  void Deliver(transport::ConnectionId to, const wire::MessageHeader& header,
               std::span<const float> payload = {}) {
    transport::ReceivedMessage message;
    message.header = header;
    message.header.payload_bytes = static_cast<std::uint32_t>(payload.size_bytes());
    if (!payload.empty()) {
      std::byte* const slot = landing_[to.index][header.slot.value].data;
      std::memcpy(slot, payload.data(), payload.size_bytes());
      message.payload = slot;
    }
    inbox_.push_back({to, message});
  }
  // A message from memory that both ends share, delivered in place.
  void DeliverInPlace(transport::ConnectionId to, const wire::MessageHeader& header,
                      std::span<const std::byte> payload) {
    transport::ReceivedMessage message;
    message.header = header;
    message.header.slot = kNoSlot;
    message.header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    message.payload = payload.data();
    inbox_.push_back({to, message});
  }
  // Memory that this connection's ends share; its address is the offset plus 1.
  void Share(transport::ConnectionId id, std::span<std::byte> memory) {
    shared_[id.index] = memory;
  }
  void DeliverHyperParameters(transport::ConnectionId to, wire::MessageHeader header,
                              const wire::HyperParameters& values) {
    transport::ReceivedMessage message;
    header.kind = wire::MessageKind::kHyperParameters;
    header.payload_bytes = wire::kHyperParametersBytes;
    message.header = header;
    std::span<std::byte, wire::kHyperParametersBytes> bytes(message.inline_payload.data(),
                                                            wire::kHyperParametersBytes);
    wire::EncodeHyperParameters(values, bytes);
    inbox_.push_back({to, message});
  }
  void DeliverInline(transport::ConnectionId to, const wire::MessageHeader& header,
                     std::span<const std::byte> payload) {
    transport::ReceivedMessage message;
    message.header = header;
    message.header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    std::memcpy(message.inline_payload.data(), payload.data(), payload.size());
    inbox_.push_back({to, message});
  }
  void Break(transport::ConnectionId connection, transport::TransportError error) {
    closing_.push_back({connection, error});
  }
  void set_post_limit(std::size_t messages) { post_limit_ = messages; }
  void set_report_sent(bool report) { report_sent_ = report; }
  std::vector<Posted> TakePosted() { return std::exchange(posted_, {}); }
  transport::ConnectionId last_adopted() const { return last_; }
  void set_keep_posted(bool keep) { keep_posted_ = keep; }
  void set_adopts_nothing(bool nothing) { adopts_nothing_ = nothing; }

  // ---- Transport ----
  transport::ConnectionId Adopt(transport::Connection&,
                                std::span<const transport::LandingSlot> landing) override {
    if (adopts_nothing_) return {};
    landing_.push_back(landing);
    last_ = {static_cast<std::uint32_t>(landing_.size() - 1), 1};
    return last_;
  }
  void SetLanding(transport::ConnectionId id,
                  std::span<const transport::LandingSlot> landing) override {
    landing_[id.index] = landing;
  }
  void Close(transport::ConnectionId id) override {
    closing_.push_back({id, transport::TransportError::kLocalClosed});
  }
  std::size_t Post(std::span<const transport::SendRequest> requests) override {
    std::size_t taken = 0;
    for (const transport::SendRequest& request : requests) {
      if (post_limit_ == 0) break;
      --post_limit_;
      ++taken;
      for (const transport::ConnectionId& id : request.connections) {
        if (keep_posted_) {
          std::vector<float> payload(request.payload.size() / sizeof(float));
          if (!payload.empty()) {
            std::memcpy(payload.data(), request.payload.data(), request.payload.size());
          }
          posted_.push_back({id,
                             request.header,
                             std::move(payload),
                             request.payload.data(),
                             {request.payload.begin(), request.payload.end()}});
        }
        if (!request.notify_sent) continue;
        Unsent& unsent = unsent_[id.index % kTracked];
        unsent.cookies[unsent.end++ % unsent.cookies.size()] = request.cookie;
      }
    }
    return taken;
  }
  std::size_t Poll(std::span<transport::Completion> completions) override {
    std::size_t count = 0;
    lent_.clear();
    for (const std::uint32_t index : forgotten_) shared_.erase(index);
    forgotten_.clear();
    for (std::uint32_t i = 0; report_sent_ && i < landing_.size(); ++i) {
      Unsent& unsent = unsent_[i % kTracked];
      while (unsent.begin < unsent.end && count < completions.size()) {
        completions[count] = {};
        completions[count].cookie = unsent.cookies[unsent.begin++ % unsent.cookies.size()];
        completions[count].kind = transport::CompletionKind::kSent;
        completions[count++].connection = {i, 1};
      }
    }
    while (!inbox_.empty() && count < completions.size() && lent_.size() < kLentMax) {
      lent_.push_back(inbox_.front().second);
      completions[count] = {};
      completions[count].connection = inbox_.front().first;
      completions[count++].message = &lent_.back();
      inbox_.pop_front();
    }
    while (inbox_.empty() && !closing_.empty() && count < completions.size()) {
      completions[count] = {};
      completions[count].kind = transport::CompletionKind::kClosed;
      completions[count].connection = closing_.front().first;
      completions[count++].error = closing_.front().second;
      forgotten_.push_back(closing_.front().first.index);
      closing_.pop_front();
    }
    return count;
  }
  void SendKeepAlive(transport::ConnectionId id) override { ++keep_alives[id.index]; }
  transport::Activity ActivityOf(transport::ConnectionId id) const override {
    const auto found = activities.find(id.index);
    return found == activities.end() ? transport::Activity{.received = 0, .read_all = true}
                                     : found->second;
  }
  void Release(std::span<const transport::Completion>) override {}
  bool Arm() override { return inbox_.empty() && closing_.empty(); }
  int descriptor() const override { return -1; }
  void Tick(TimeNs) override {}
  std::byte* Resolve(transport::ConnectionId id, SharedAddress address,
                     std::size_t bytes) const override {
    const auto found = shared_.find(id.index);
    if (found == shared_.end() || address.value == 0) return nullptr;
    const std::uint64_t offset = address.value - 1;
    if (offset > found->second.size() || bytes > found->second.size() - offset) return nullptr;
    return found->second.data() + offset;
  }

  ScriptedTransport() { lent_.reserve(kLentMax); }

  // By connection index.
  std::map<std::uint32_t, std::uint64_t> keep_alives;
  std::map<std::uint32_t, transport::Activity> activities;

 private:
  struct Unsent {  // whose kSent is still due
    std::array<std::uint64_t, 64> cookies{};
    std::uint64_t begin = 0, end = 0;
  };
  static constexpr std::size_t kLentMax = 64;
  static constexpr std::size_t kTracked = 64;
  std::vector<std::span<const transport::LandingSlot>> landing_;
  std::map<std::uint32_t, std::span<std::byte>> shared_;
  std::vector<std::uint32_t> forgotten_;  // whose shared memory is released by the next Poll
  std::deque<std::pair<transport::ConnectionId, transport::ReceivedMessage>> inbox_;
  std::vector<transport::ReceivedMessage> lent_;
  std::deque<std::pair<transport::ConnectionId, transport::TransportError>> closing_;
  std::vector<Posted> posted_;
  std::array<Unsent, kTracked> unsent_;
  transport::ConnectionId last_;
  std::size_t post_limit_ = SIZE_MAX;
  bool report_sent_ = true;
  bool adopts_nothing_ = false;
  bool keep_posted_ = true;
};

}  // namespace phub
