// A transport in memory whose other end is the test: it sees every request that the engine posts,
// and delivers messages. It checks what a transport must check (slot in range, open, large enough),
// and that closed connections are not used. It may share memory with the engine.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "common/transport/transport.h"

namespace phub::client {

class FakeConnection final : public transport::Connection {};

class FakeTransport final : public transport::Transport {
 public:
  struct Posted {
    transport::ConnectionId connection;
    wire::MessageHeader header;
    const std::byte* payload = nullptr;  // the address from which the engine sent it
    std::vector<std::byte> bytes;
  };

  // The messages that the engine sent since the last call.
  std::vector<Posted> TakePosted() { return std::exchange(posted_, {}); }
  const std::vector<Posted>& posted() const { return posted_; }
  // The number of requests that one Post accepts. Then the queue is full until the next Poll.
  void SetPostLimit(std::size_t limit) { post_limit_ = room_ = limit; }
  // Keeps headers only, in preallocated memory, so that tests can count allocations.
  void StopCopying() {
    copying_ = false;
    posted_.reserve(1024);
  }
  void ClearPosted() { posted_.clear(); }

  // From now on both ends map this memory; the engine may write to it if `writable`.
  void Share(std::span<std::byte> region, bool writable) { regions_.push_back({region, writable}); }
  // From now on both ends map the daemon's staging slots, for the life of the transport.
  void ShareSlots(std::uint32_t slot_count, std::uint32_t slot_bytes) {
    slots_.assign(slot_count, std::vector<std::byte>(slot_bytes));
  }
  std::vector<std::byte>& slot(SlotIndex index) { return slots_.at(index.value); }

  std::size_t connection_count() const { return links_.size(); }
  transport::ConnectionId connection(std::size_t i) const {
    return {.index = static_cast<std::uint32_t>(i), .generation = 1};
  }
  bool open(std::size_t i) const { return links_[i].open; }
  transport::LandingSlot landing(std::size_t i, std::uint32_t slot) const {
    return links_[i].landing[slot];
  }

  // A message from the daemon arrives on connection i.
  void Deliver(std::size_t i, const wire::MessageHeader& header,
               std::span<const std::byte> payload) {
    Link& link = links_[i];
    if (!link.open) return;
    if (header.kind == wire::MessageKind::kParameters) {
      transport::ProtocolError error = transport::ProtocolError::kNone;
      if (header.slot.value >= link.landing.size())
        error = transport::ProtocolError::kSlotRange;
      else if (link.landing[header.slot.value].data == nullptr)
        error = transport::ProtocolError::kSlotClosed;
      else if (payload.size() > link.landing[header.slot.value].bytes_max)
        error = transport::ProtocolError::kSlotBytes;
      else if (link.landing[header.slot.value].read_only &&
               link.landing[header.slot.value].data != payload.data())
        error = transport::ProtocolError::kSlotReadOnly;
      if (error != transport::ProtocolError::kNone)
        return Break(i, transport::TransportError::kProtocol, error);
      if (!payload.empty() && link.landing[header.slot.value].data != payload.data())
        std::memcpy(link.landing[header.slot.value].data, payload.data(), payload.size());
    }
    transport::ReceivedMessage& message =
        messages_.emplace_back(transport::ReceivedMessage{.header = header, .inline_payload = {}});
    if (header.kind >= wire::MessageKind::kAnnounce) {
      message.header.payload_bytes = static_cast<std::uint32_t>(payload.size());
      std::ranges::copy(payload, message.inline_payload.begin());
    }
    transport::Completion completion;
    completion.connection = connection(i);
    completion.message = &messages_.back();
    arrived_.push_back(completion);
  }
  // The connection fails.
  void Break(std::size_t i, transport::TransportError error,
             transport::ProtocolError protocol_error = transport::ProtocolError::kNone) {
    if (!std::exchange(links_[i].open, false)) return;
    transport::Completion completion;
    completion.error = error;
    completion.protocol_error = protocol_error;
    completion.kind = transport::CompletionKind::kClosed;
    completion.connection = connection(i);
    arrived_.push_back(completion);
  }

  transport::ConnectionId Adopt(transport::Connection&,
                                std::span<const transport::LandingSlot> landing) override {
    links_.push_back({.landing = landing, .open = true});
    return connection(links_.size() - 1);
  }
  void SetLanding(transport::ConnectionId id,
                  std::span<const transport::LandingSlot> landing) override {
    links_.at(id.index).landing = landing;
  }
  void Close(transport::ConnectionId id) override {
    Break(id.index, transport::TransportError::kLocalClosed);
  }
  std::size_t Post(std::span<const transport::SendRequest> requests) override {
    std::size_t taken = 0;
    for (const transport::SendRequest& request : requests) {
      if (room_ == 0) break;
      --room_;
      ++taken;
      for (const transport::ConnectionId id : request.connections) {
        PHUB_CHECK(links_.at(id.index).open, "connection={}", id.index);
        Posted posted{.connection = id,
                      .header = request.header,
                      .payload = request.payload.data(),
                      .bytes = {}};
        if (copying_) posted.bytes.assign(request.payload.begin(), request.payload.end());
        posted_.push_back(std::move(posted));
      }
    }
    return taken;
  }
  std::size_t Poll(std::span<transport::Completion> completions) override {
    room_ = post_limit_;
    const std::size_t count = std::min(completions.size(), arrived_.size());
    std::copy_n(arrived_.begin(), count, completions.begin());
    arrived_.erase(arrived_.begin(), arrived_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  void SendKeepAlive(transport::ConnectionId) override { ++keep_alives; }
  transport::Activity ActivityOf(transport::ConnectionId) const override { return activity; }
  void Release(std::span<const transport::Completion>) override {
    if (arrived_.empty()) messages_.clear();
  }
  SharedAddress AddressOf(transport::ConnectionId, const std::byte* data,
                          std::size_t bytes) const override {
    for (std::size_t r = 0; r < regions_.size(); ++r) {
      const std::span<std::byte> region = regions_[r].memory;
      if (data >= region.data() && data + bytes <= region.data() + region.size())
        return {kRegionBytesMax * (r + 1) + static_cast<std::uint64_t>(data - region.data())};
    }
    return {};
  }
  std::byte* Resolve(transport::ConnectionId, SharedAddress address, std::size_t) const override {
    const Region& region = regions_.at(address.value / kRegionBytesMax - 1);
    return region.writable ? region.memory.data() + address.value % kRegionBytesMax : nullptr;
  }
  std::byte* PeerSlot(transport::ConnectionId, SlotIndex index) const override {
    if (index.value >= slots_.size()) return nullptr;
    return const_cast<std::byte*>(slots_[index.value].data());
  }

  std::uint64_t keep_alives = 0;
  transport::Activity activity{.received = 0, .read_all = true};  // of every connection

  bool Arm() override { return arrived_.empty(); }
  int descriptor() const override { return -1; }
  void Tick(TimeNs) override {}

 private:
  struct Link {
    std::span<const transport::LandingSlot> landing;
    bool open = false;
  };
  struct Region {
    std::span<std::byte> memory;
    bool writable = false;
  };
  static constexpr std::uint64_t kRegionBytesMax = 1u << 30;
  std::vector<Region> regions_;
  std::vector<std::vector<std::byte>> slots_;
  std::vector<Link> links_;
  std::vector<Posted> posted_;
  std::deque<transport::ReceivedMessage> messages_;
  std::vector<transport::Completion> arrived_;
  std::size_t post_limit_ = SIZE_MAX;
  std::size_t room_ = SIZE_MAX;
  bool copying_ = true;
};

}  // namespace phub::client
