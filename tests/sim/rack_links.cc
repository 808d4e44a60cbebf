#include "tests/sim/rack_links.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace phub::sim {

using transport::Completion;
using transport::CompletionKind;
using transport::ConnectionId;

ConnectionId RackTransport::Adopt(transport::Connection& connection,
                                  std::span<const transport::LandingSlot> landing) {
  const auto index = static_cast<std::uint32_t>(lanes_.size());
  lanes_.push_back(std::make_unique<Lane>());
  lanes_.back()->endpoint = static_cast<Endpoint*>(&connection);
  lanes_.back()->landing = landing;
  if (!IsWorker(*lanes_.back())) lane_to_[lanes_.back()->endpoint->other_rack] = index;
  return {index, 1};
}

void RackTransport::SetLanding(ConnectionId id, std::span<const transport::LandingSlot> landing) {
  lanes_[id.index]->landing = landing;
}

void RackTransport::Send(const wire::MessageHeader& header) {
  for (const auto& lane : lanes_) {
    if (!IsWorker(*lane)) continue;
    transport::ReceivedMessage message;
    message.header = header;
    message.payload = lane->landing[header.slot.value].data;
    lane->inbox.push_back(message);
  }
}

std::size_t RackTransport::Post(std::span<const transport::SendRequest> requests) {
  for (std::size_t taken = 0; taken < requests.size(); ++taken) {
    const transport::SendRequest& request = requests[taken];
    PHUB_CHECK(request.connections.size() == 1);
    Lane& lane = *lanes_[request.connections[0].index];
    if (lane.queue.size() == links_.options().send_queue) return taken;
    Message message{request.header, request.payload, 0, request.cookie, request.notify_sent};
    if (IsWorker(lane)) {
      hear_(message.header, message.payload);
    } else {
      lane.posted += wire::kHeaderBytes + message.payload.size();
    }
    message.end = lane.posted;
    lane.queue.push_back(message);
    if (!IsWorker(lane)) lane.in_flight.push_back(message);
  }
  return requests.size();
}

// What the socket takes now.
std::uint64_t RackTransport::RoomOf(const Lane& lane) const {
  const std::uint64_t limit =
      lane.endpoint->limit > 0 ? lane.endpoint->limit : links_.options().socket_bytes;
  const std::uint64_t unsent = lane.written - lane.left;
  return unsent < limit ? limit - unsent : 0;
}

// As the kernel, which reports a socket as writable once half of its limit is free.
bool RackTransport::CanWrite(const Lane& lane) const {
  const std::uint64_t unsent = lane.written - lane.left;
  return lane.posted > lane.written && RoomOf(lane) > unsent;
}

bool RackTransport::HasWork() const {
  return std::ranges::any_of(lanes_, [this](const std::unique_ptr<Lane>& lane) {
    if (!lane->inbox.empty() || CanWrite(*lane)) return true;
    return !lane->queue.empty() && lane->queue.front().end <= lane->written;
  });
}

// Reports messages that have arrived or are written.
std::size_t RackTransport::Report(std::uint32_t index, std::span<Completion> completions) {
  Lane& lane = *lanes_[index];
  std::size_t count = 0;
  const auto add = [&](CompletionKind kind) -> Completion& {
    completions[count] = {};
    completions[count].kind = kind;
    completions[count].connection = {index, 1};
    return completions[count++];
  };
  while (!lane.queue.empty() && lane.queue.front().end <= lane.written &&
         count < completions.size()) {
    const Message& message = lane.queue.front();
    if (message.notify_sent) add(CompletionKind::kSent).cookie = message.cookie;
    lane.queue.pop_front();
  }
  while (!lane.inbox.empty() && count < completions.size()) {
    lane.lent.push_back(lane.inbox.front());
    lane.inbox.pop_front();
    add(CompletionKind::kReceived).message = &lane.lent.back();
  }
  return count;
}

std::size_t RackTransport::Poll(std::span<Completion> completions) {
  std::size_t count = 0;
  for (std::uint32_t index = 0; index < lanes_.size(); ++index) {
    Lane& lane = *lanes_[index];
    lane.written += std::min(lane.posted - lane.written, RoomOf(lane));
    count += Report(index, completions.subspan(count));
  }
  links_.StartSending(rack_);
  return count;
}

void RackTransport::Release(std::span<const Completion> completions) {
  for (const Completion& completion : completions)
    if (completion.kind == CompletionKind::kReceived)
      lanes_[completion.connection.index]->lent.clear();
}

RackLinks::RackLinks(std::uint32_t racks, const LinkOptions& options)
    : options_(options), racks_(racks) {
  for (std::uint32_t rack = 0; rack < racks; ++rack) {
    transports_.push_back(std::make_unique<RackTransport>(*this, rack));
    transports_.back()->lane_to_.assign(racks, UINT32_MAX);
  }
}
RackLinks::~RackLinks() = default;

DurationNs RackLinks::TimeOf(std::uint64_t bytes) const {
  return static_cast<DurationNs>(static_cast<double>(bytes) * 1e9 / options_.bytes_per_second);
}

void RackLinks::Schedule(TimeNs time, std::function<void()> function) {
  events_.push({std::max(time, clock_.now), sequence_++, std::move(function)});
}

bool RackLinks::Step() {
  if (events_.empty()) return false;
  const Event event = events_.top();
  events_.pop();
  clock_.now = event.time;
  event.function();
  return true;
}

void RackLinks::Stall(std::uint32_t from, std::uint32_t to, TimeNs until) {
  const std::uint32_t index = transports_[from]->lane_to_[to];
  if (index == UINT32_MAX) return;
  transports_[from]->lanes_[index]->stalled_until = until;
  Schedule(until, [this, from] { StartSending(from); });
}

// The next lane in turn that has bytes, and whose receiver has room, sends a packet.
void RackLinks::StartSending(std::uint32_t from) {
  Rack& rack = racks_[from];
  RackTransport& transport = *transports_[from];
  const auto lanes = static_cast<std::uint32_t>(transport.lanes_.size());
  for (std::uint32_t i = 0; i < lanes && !rack.sends; ++i) {
    const std::uint32_t index = (rack.next_lane + i) % lanes;
    RackTransport::Lane& lane = *transport.lanes_[index];
    if (transport.IsWorker(lane) || lane.written == lane.left || lane.stalled_until > clock_.now)
      continue;
    const std::uint32_t to = lane.endpoint->other_rack;
    if (racks_[to].queued_bytes >= options_.queue_bytes) continue;
    const std::uint64_t bytes =
        std::min<std::uint64_t>(options_.packet_bytes, lane.written - lane.left);
    lane.left += bytes;
    racks_[to].queued_bytes += bytes;
    rack.next_lane = index + 1;
    rack.sends = true;
    Schedule(clock_.now + TimeOf(bytes), [this, from] {
      racks_[from].sends = false;
      StartSending(from);
    });
    Schedule(clock_.now + TimeOf(bytes) + options_.latency, [this, from, to, bytes] {
      racks_[to].queue.push_back({from, bytes});
      StartReceiving(to);
    });
  }
}

void RackLinks::StartReceiving(std::uint32_t to) {
  Rack& rack = racks_[to];
  if (rack.receives || rack.queue.empty()) return;
  const Packet packet = rack.queue.front();
  rack.queue.pop_front();
  rack.receives = true;
  Schedule(clock_.now + TimeOf(packet.bytes), [this, to, packet] {
    racks_[to].receives = false;
    racks_[to].queued_bytes -= packet.bytes;
    Deliver(packet.from, to, packet.bytes);
    StartReceiving(to);
    for (std::uint32_t from = 0; from < racks_.size(); ++from) StartSending(from);
  });
}

void RackLinks::Deliver(std::uint32_t from, std::uint32_t to, std::uint64_t bytes) {
  RackTransport& sender = *transports_[from];
  RackTransport::Lane& sending = *sender.lanes_[sender.lane_to_[to]];
  RackTransport::Lane& lane = *transports_[to]->lanes_[transports_[to]->lane_to_[from]];
  sending.arrived += bytes;
  while (!sending.in_flight.empty() && sending.in_flight.front().end <= sending.arrived) {
    const RackTransport::Message& message = sending.in_flight.front();
    transport::ReceivedMessage received;
    received.header = message.header;
    if (!message.payload.empty()) {
      const transport::LandingSlot& slot = lane.landing[message.header.slot.value];
      PHUB_CHECK(slot.data != nullptr && message.payload.size() <= slot.bytes_max, "slot={}",
                 message.header.slot.value);
      std::memcpy(slot.data, message.payload.data(), message.payload.size());
      received.payload = slot.data;
    }
    lane.inbox.push_back(received);
    sending.in_flight.pop_front();
  }
}

}  // namespace phub::sim
