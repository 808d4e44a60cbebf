// The network of fair_cluster.h: messages arrive at once in both directions. Lanes take turns as in
// the product's transports (turn_transport.h).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "common/transport/transport.h"
#include "common/transport/turn_transport.h"

namespace phub::server {

class FairTransport final : public transport::Transport {
 public:
  class Endpoint final : public transport::Connection {};
  using Hear = std::function<void(const wire::MessageHeader&)>;

  // Sets the worker that receives from the next adopted lane.
  void SetNextHearer(Hear hear) { next_hearer_ = std::move(hear); }
  transport::ConnectionId last_adopted() const {
    return {static_cast<std::uint32_t>(lanes_.size() - 1), 1};
  }
  Endpoint& endpoint() { return endpoint_; }
  // The number of messages that the loop has received from all lanes.
  std::uint64_t messages_taken() const { return messages_taken_; }
  std::uint64_t bytes_taken() const { return bytes_taken_; }
  void Send(transport::ConnectionId id, const wire::MessageHeader& header) {
    Lane& lane = *lanes_[id.index];
    if (lane.closing || lane.closed) return;
    transport::ReceivedMessage message;
    message.header = header;
    if (header.payload_bytes > 0) message.payload = lane.landing[header.slot.value].data;
    lane.inbox.push_back(message);
    MakeReady(id.index);
  }
  // Closes the worker's end.
  void Break(transport::ConnectionId id) {
    lanes_[id.index]->closing = true;
    lanes_[id.index]->error = transport::TransportError::kPeerClosed;
    MakeReady(id.index);
  }

  transport::ConnectionId Adopt(transport::Connection& /*connection*/,
                                std::span<const transport::LandingSlot> landing) override {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->landing = landing;
    lanes_.back()->hear = next_hearer_;
    return last_adopted();
  }
  void SetLanding(transport::ConnectionId id,
                  std::span<const transport::LandingSlot> landing) override {
    lanes_[id.index]->landing = landing;
  }
  void Close(transport::ConnectionId id) override {
    Lane& lane = *lanes_[id.index];
    if (lane.closing || lane.closed) return;
    lane.closing = true;
    lane.error = transport::TransportError::kLocalClosed;
    MakeReady(id.index);
  }
  std::size_t Post(std::span<const transport::SendRequest> requests) override {
    for (const transport::SendRequest& request : requests) {
      for (const transport::ConnectionId& id : request.connections) {
        Lane& lane = *lanes_[id.index];
        if (lane.closing || lane.closed) continue;
        if (request.notify_sent) ++lane.unreported;
        MakeReady(id.index);
        lane.hear(request.header);
      }
    }
    return requests.size();
  }
  std::size_t Poll(std::span<transport::Completion> completions) override {
    std::size_t count = 0;
    for (std::size_t turns = ready_.size(); turns > 0 && count < completions.size(); --turns) {
      const std::uint32_t index = ready_.front();
      ready_.pop_front();
      lanes_[index]->is_ready = false;
      count += Serve(index, completions.subspan(count));
    }
    return count;
  }
  void Release(std::span<const transport::Completion> completions) override {
    for (const transport::Completion& completion : completions) {
      if (completion.kind != transport::CompletionKind::kReceived) continue;
      lanes_[completion.connection.index]->lent.clear();
    }
  }
  void Hold(transport::ConnectionId id, bool held) override {
    lanes_[id.index]->held = held;
    if (!held) MakeReady(id.index);
  }
  bool Arm() override { return ready_.empty(); }
  int descriptor() const override { return -1; }
  void Tick(TimeNs /*now*/) override {}

 private:
  struct Lane {
    std::span<const transport::LandingSlot> landing;
    Hear hear;
    std::deque<transport::ReceivedMessage> inbox;
    std::deque<transport::ReceivedMessage> lent;
    std::uint32_t unreported = 0;
    bool is_ready = false;
    bool held = false;
    bool closing = false;
    bool closed = false;
    transport::TransportError error{};
  };
  void MakeReady(std::uint32_t index) {
    if (lanes_[index]->is_ready || lanes_[index]->closed) return;
    lanes_[index]->is_ready = true;
    ready_.push_back(index);
  }
  std::size_t Serve(std::uint32_t index, std::span<transport::Completion> completions) {
    Lane& lane = *lanes_[index];
    std::size_t count = 0;
    const auto add = [&](transport::CompletionKind kind) -> transport::Completion& {
      transport::Completion& completion = completions[count++];
      completion = {};
      completion.kind = kind;
      completion.connection = {index, 1};
      return completion;
    };
    if (lane.closing) {
      lane.closed = true;
      lane.inbox.clear();
      add(transport::CompletionKind::kClosed).error = lane.error;
      return count;
    }
    for (; lane.unreported > 0 && count < completions.size(); --lane.unreported) {
      add(transport::CompletionKind::kSent);
    }
    std::size_t bytes = 0;
    for (std::uint32_t messages = 0;
         !lane.held && !lane.inbox.empty() && count < completions.size() &&
         messages < transport::kTurnMessages && bytes < transport::kTurnBytes;
         ++messages) {
      bytes += lane.inbox.front().header.payload_bytes;
      ++messages_taken_;
      lane.lent.push_back(lane.inbox.front());
      lane.inbox.pop_front();
      add(transport::CompletionKind::kReceived).message = &lane.lent.back();
    }
    bytes_taken_ += bytes;
    if (lane.unreported > 0 || (!lane.held && !lane.inbox.empty())) MakeReady(index);
    return count;
  }

  Endpoint endpoint_;
  Hear next_hearer_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::deque<std::uint32_t> ready_;
  std::uint64_t messages_taken_ = 0;
  std::uint64_t bytes_taken_ = 0;
};

}  // namespace phub::server
