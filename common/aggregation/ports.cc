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
      on_parameters_(std::move(on_parameters)) {}

void WorkerPort::Open(const phub_lease& lease, std::uint8_t worker) {
  PHUB_CHECK(worker < lease.worker_count, "worker={} of {}", worker, lease.worker_count);
  lease_ = lease;
  worker_ = worker;
}

void WorkerPort::Perform(const WorkerActions& actions, WorkerActions& over_tcp) {
  for (const WorkerAction& action : actions) {
    switch (action.kind) {
      case WorkerAction::Kind::kAnnounce:
      case WorkerAction::Kind::kPushTcp: over_tcp.push_back(action); break;
      case WorkerAction::Kind::kSendPayload: Send(action); break;
    }
    if (socket_.queued_bytes() > kQueuedBytesMax) socket_.Flush();
  }
  socket_.Flush();
}

void WorkerPort::Send(const WorkerAction& action) {
  if (action.lease.value != lease_.number) return;  // the stream has ended
  const Payload payload = payload_of_(action.chunk, action.iteration, action.block);
  PHUB_CHECK(payload.integers.size() <= lease_.count_max, "count={}", payload.integers.size());
  const std::span<const std::uint8_t> bytes = BytesOf(payload.integers);
  phub_packet packet{};
  packet.lease = lease_.number;
  packet.phase = geometry_.PhaseOf(action.position);
  packet.slot = static_cast<__u16>(geometry_.SlotOf(action.position, action.block));
  packet.worker = worker_;
  packet.kind = PHUB_PACKET_PAYLOAD;
  packet.count = static_cast<__u16>(payload.integers.size());
  packet.exponent = payload.exponent;
  packet.payload_sum = phub_payload_sum(bytes.data(), packet.count);
  std::array<std::uint8_t, PHUB_PACKET_BYTES> header{};
  phub_packet_encode(&packet, &lease_.key, header.data());
  socket_.Queue(lease_.aggregator, header, bytes);
  ++payloads_sent_;
}

bool WorkerPort::Receive() {
  const std::size_t count =
      socket_.Receive([&](std::span<const std::uint8_t> datagram, const phub_endpoint& source) {
        Handle(datagram, source);
      });
  socket_.Flush();
  return count != 0;
}

void WorkerPort::Handle(std::span<const std::uint8_t> datagram, const phub_endpoint& source) {
  phub_packet packet{};
  const phub_check check = phub_packet_check(&lease_, PHUB_KINDS_TO_WORKERS, datagram.data(),
                                             static_cast<__u32>(datagram.size()), &source, &packet);
  ++checks_[check];
  if (check != PHUB_CHECK_GOOD) return;
  if (packet.worker != worker_ && packet.worker != PHUB_EVERY_WORKER) return;
  if (packet.kind == PHUB_PACKET_PARAMETERS) {
    phub_parameters about{};
    phub_packet_get_parameters(&packet, &about);
    return on_parameters_(about, std::as_bytes(datagram.subspan(PHUB_PACKET_BYTES)));
  }
  if (packet.kind == PHUB_PACKET_REFUSED) {
    ++refused_;
    return;
  }
  WorkerActions actions;
  stream_.Missing(packet, actions);
  for (const WorkerAction& action : actions) Send(action);
}

CorePort::CorePort(const Geometry& geometry, CoreStream& stream, DatagramSocket& socket)
    : geometry_(geometry), stream_(stream), socket_(socket), timers_(geometry) {
  actions_.reserve(2);  // a datagram leads to that many at most: fold, complete
}

void CorePort::Open(const phub_lease& lease) {
  lease_ = lease;
  timers_.Clear();
  nack_number_ = 0;
}

bool CorePort::Receive(TimeNs now, const OnSum& on_sum) {
  const std::size_t count =
      socket_.Receive([&](std::span<const std::uint8_t> datagram, const phub_endpoint& source) {
        Handle(datagram, source, now, on_sum);
      });
  socket_.Flush();
  return count != 0;
}

void CorePort::Handle(std::span<const std::uint8_t> datagram, const phub_endpoint& source,
                      TimeNs now, const OnSum& on_sum) {
  phub_packet packet{};
  const phub_check check = phub_packet_check(&lease_, PHUB_KINDS_TO_CORE_LOOP, datagram.data(),
                                             static_cast<__u32>(datagram.size()), &source, &packet);
  if (check != PHUB_CHECK_GOOD) {
    ++refused_;
    return;
  }
  actions_.clear();
  if (stream_.Sum(packet, actions_) != SumVerdict::kFolded) return;
  const CoreAction& fold = actions_.front();
  NackTimers::Sum sum = NackTimers::Sum::kOther;
  if (fold.block + 1 == stream_.BlocksOf(fold.chunk)) sum = NackTimers::Sum::kOfLastBlock;
  if (actions_.back().kind == CoreAction::Kind::kComplete) sum = NackTimers::Sum::kLast;
  timers_.Arrived(fold.position, sum, now);
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

std::uint32_t CorePort::AskAgain(TimeNs now) {
  if (now < timers_.deadline()) return 0;
  std::uint32_t count = 0;
  timers_.Due(now, [&](Position position) {
    SendNack(position);
    ++count;
  });
  socket_.Flush();
  return count;
}

void CorePort::SendNack(Position position) {
  std::array<std::uint32_t, PHUB_PACKET_COUNT_MAX> bits{};
  const std::uint32_t blocks =
      std::min({geometry_.blocks, 32 * lease_.count_max, std::uint32_t{32 * bits.size()}});
  for (std::uint32_t block = 0; block < blocks; ++block) {
    if (stream_.IsMissing(position, block)) bits[block / 32] |= 1u << (block % 32);
  }
  const std::span<const std::uint8_t> payload(reinterpret_cast<const std::uint8_t*>(bits.data()),
                                              4 * std::size_t{(blocks + 31) / 32});
  const phub_nack nack = {.number = ++nack_number_,
                          .slot = static_cast<__u16>(geometry_.SlotOf(position, 0))};
  phub_packet packet{};
  packet.lease = lease_.number;
  packet.phase = geometry_.PhaseOf(position);
  packet.count = static_cast<__u16>(payload.size() / 4);
  packet.payload_sum = phub_payload_sum(payload.data(), packet.count);
  phub_packet_set_nack(&packet, &nack);
  std::array<std::uint8_t, PHUB_PACKET_BYTES> header{};
  phub_packet_encode(&packet, &lease_.key, header.data());
  socket_.Queue(lease_.aggregator, header, payload);
}

}  // namespace phub::aggregation
