#include "common/aggregation/ports.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace phub::aggregation {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian");

// Datagrams are flushed at the latest when so much is queued.
constexpr std::size_t kQueuedBytesMax = 256 << 10;

std::span<const std::uint8_t> BytesOf(std::span<const std::int32_t> integers) {
  return {reinterpret_cast<const std::uint8_t*>(integers.data()), integers.size_bytes()};
}

}  // namespace

WorkerPort::WorkerPort(const Geometry& geometry, WorkerStream& stream, DatagramSocket& socket,
                       PayloadOf payload_of, OnParameters on_parameters)
    : geometry_(geometry),
      stream_(stream),
      socket_(socket),
      payload_of_(std::move(payload_of)),
      on_parameters_(std::move(on_parameters)),
      timers_(geometry),
      timed_(geometry.positions) {}

void WorkerPort::Open(const phub_lease& lease, std::uint8_t worker) {
  PHUB_CHECK(worker < lease.worker_count, "worker={} of {}", worker, lease.worker_count);
  lease_ = lease;
  worker_ = worker;
  for (std::uint32_t place = 0; place < geometry_.positions; ++place) timers_.Close(place);
  timed_.assign(geometry_.positions, Position::Max());
}

void WorkerPort::Perform(const WorkerActions& actions, TimeNs now, WorkerActions& over_tcp) {
  for (const WorkerAction& action : actions) {
    switch (action.kind) {
      case WorkerAction::Kind::kAnnounce:
      case WorkerAction::Kind::kPushTcp: over_tcp.push_back(action); break;
      case WorkerAction::Kind::kSendPayload:
      case WorkerAction::Kind::kSendProbe: Send(action, now); break;
    }
    if (socket_.queued_bytes() > kQueuedBytesMax) socket_.Flush();
  }
  socket_.Flush();
}

void WorkerPort::Send(const WorkerAction& action, TimeNs now) {
  if (action.lease.value != lease_.number) return;  // the stream has ended
  phub_packet packet{};
  packet.lease = lease_.number;
  packet.phase = geometry_.PhaseOf(action.position);
  packet.slot = static_cast<__u16>(geometry_.SlotOf(action.position, action.block));
  packet.worker = worker_;
  packet.kind = PHUB_PACKET_PROBE;
  std::span<const std::uint8_t> bytes;
  if (action.kind == WorkerAction::Kind::kSendPayload) {
    const Payload payload = payload_of_(action.chunk, action.iteration, action.block);
    PHUB_CHECK(payload.integers.size() <= lease_.count_max, "count={}", payload.integers.size());
    bytes = BytesOf(payload.integers);
    packet.kind = PHUB_PACKET_PAYLOAD;
    packet.count = static_cast<__u16>(payload.integers.size());
    packet.exponent = payload.exponent;
    packet.payload_sum = phub_payload_sum(bytes.data(), packet.count);
    const std::uint32_t place = geometry_.PlaceOf(action.position);
    if (std::exchange(timed_[place], action.position) != action.position) timers_.Close(place);
    timers_.Sent(place, action.block, now);
    ++payloads_sent_;
  } else {
    ++probes_sent_;
  }
  std::array<std::uint8_t, PHUB_PACKET_BYTES> header{};
  phub_packet_encode(&packet, &lease_.key, header.data());
  socket_.Queue(lease_.aggregator, header, bytes);
}

bool WorkerPort::Receive(TimeNs now) {
  const std::size_t count =
      socket_.Receive([&](std::span<const std::uint8_t> datagram, const phub_endpoint& source) {
        Handle(datagram, source, now);
      });
  socket_.Flush();
  return count != 0;
}

void WorkerPort::Handle(std::span<const std::uint8_t> datagram, const phub_endpoint& source,
                        TimeNs now) {
  phub_packet packet{};
  const phub_check check = phub_packet_check(&lease_, PHUB_KINDS_TO_WORKERS, datagram.data(),
                                             static_cast<__u32>(datagram.size()), &source, &packet);
  ++checks_[check];
  if (check != PHUB_CHECK_GOOD) return;
  if (packet.worker != worker_ && packet.worker != PHUB_EVERY_WORKER) return;
  if (packet.kind == PHUB_PACKET_REFUSED) ++refused_;
  if (packet.kind == PHUB_PACKET_PARAMETERS) {
    phub_parameters about{};
    phub_packet_get_parameters(&packet, &about);
    return on_parameters_(about, std::as_bytes(datagram.subspan(PHUB_PACKET_BYTES)));
  }
  const std::uint32_t place = packet.slot / geometry_.blocks;
  const std::uint32_t block = packet.slot % geometry_.blocks;
  WorkerActions actions;
  if (stream_.IsAbout(packet)) {
    timers_.Answered(place, block, now);
    if (packet.kind == PHUB_PACKET_TAKEN) {
      timers_.Taken(place, now);
      for (std::uint32_t other = 0; other < geometry_.positions; ++other) {
        if (timed_[other] < timed_[place]) timers_.Overtaken(other, now);
      }
    }
  }
  stream_.Receive(packet, actions);
  for (const WorkerAction& action : actions) Send(action, now);
}

void WorkerPort::Probe(TimeNs now) {
  WorkerActions actions;
  timers_.Due(now, [&](std::uint32_t place, std::uint32_t block) {
    if (!stream_.IsOutstanding(place, block)) return timers_.Close(place);
    stream_.Probe(place, block, actions);
  });
  for (const WorkerAction& action : actions) Send(action, now);
  socket_.Flush();
}

CorePort::CorePort(const Geometry& geometry, CoreStream& stream, DatagramSocket& socket)
    : geometry_(geometry), stream_(stream), socket_(socket) {
  actions_.reserve(3);  // a datagram leads to that many at most: fold, taken, complete
}

bool CorePort::Receive(const OnSum& on_sum) {
  const std::size_t count =
      socket_.Receive([&](std::span<const std::uint8_t> datagram, const phub_endpoint& source) {
        Handle(datagram, source, on_sum);
      });
  socket_.Flush();
  return count != 0;
}

void CorePort::Handle(std::span<const std::uint8_t> datagram, const phub_endpoint& source,
                      const OnSum& on_sum) {
  phub_packet packet{};
  const phub_check check = phub_packet_check(&lease_, PHUB_KINDS_TO_CORE_LOOP, datagram.data(),
                                             static_cast<__u32>(datagram.size()), &source, &packet);
  if (check != PHUB_CHECK_GOOD) {
    ++refused_;
    return;
  }
  actions_.clear();
  ++sums_[static_cast<std::size_t>(stream_.Sum(packet, actions_))];
  for (const CoreAction& action : actions_) {
    if (action.kind == CoreAction::Kind::kTaken) SendTaken(action.position);
  }
  std::array<std::int32_t, PHUB_PACKET_COUNT_MAX> integers;
  std::memcpy(integers.data(), datagram.data() + PHUB_PACKET_BYTES, 4u * packet.count);
  on_sum(actions_, std::span(integers).first(packet.count), packet.exponent);
}

void CorePort::SendParameters(const phub_parameters& about, std::span<const std::byte> bytes,
                              std::uint8_t worker) {
  PHUB_CHECK(bytes.size() <= 4u * lease_.count_max && bytes.size() % 2 == 0, "bytes={}",
             bytes.size());
  std::span<const std::uint8_t> payload(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                        bytes.size());
  std::array<std::uint8_t, 4u * PHUB_PACKET_COUNT_MAX> padded;
  if (payload.size() % 4 != 0) {  // a version of 16-bit elements that ends in half an integer
    std::ranges::copy(payload, padded.begin());
    padded[payload.size()] = padded[payload.size() + 1] = 0;
    payload = std::span(padded).first(payload.size() + 2);
  }
  phub_packet packet{};
  packet.lease = lease_.number;
  packet.worker = worker;
  packet.count = static_cast<__u16>(payload.size() / 4);
  packet.payload_sum = phub_payload_sum(payload.data(), packet.count);
  phub_packet_set_parameters(&packet, &about);
  std::array<std::uint8_t, PHUB_PACKET_BYTES> header{};
  phub_packet_encode(&packet, &lease_.key, header.data());
  socket_.Queue(lease_.aggregator, header, payload);
  if (socket_.queued_bytes() > kQueuedBytesMax) socket_.Flush();
}

void CorePort::SendTaken(Position position) {
  phub_packet packet{};
  packet.lease = lease_.number;
  packet.phase = geometry_.PhaseOf(position);
  packet.slot = static_cast<__u16>(geometry_.SlotOf(position, 0));
  packet.worker = PHUB_EVERY_WORKER;
  packet.kind = PHUB_PACKET_TAKEN;
  std::array<std::uint8_t, PHUB_PACKET_BYTES> header{};
  phub_packet_encode(&packet, &lease_.key, header.data());
  // One datagram: the aggregator forwards it to all workers.
  socket_.Queue(lease_.aggregator, header, {});
}

}  // namespace phub::aggregation
