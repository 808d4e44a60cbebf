#include "tests/unit/aggregator/xdp_trace.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

namespace phub::aggregator {
namespace {

constexpr std::size_t kRemembered = 200;
constexpr std::uint32_t kSlots = 5;
constexpr std::uint8_t kCoreLoopHost = 100;

}  // namespace

phub_endpoint TraceEndpoint(std::uint8_t host, std::uint16_t port) {
  phub_endpoint endpoint{};
  auto* const bytes = reinterpret_cast<std::uint8_t*>(endpoint.address);
  const std::uint8_t mapped[] = {0xff, 0xff, 10, 0, 0, host};
  std::memcpy(bytes + 10, mapped, sizeof mapped);
  endpoint.port = htons(port);
  return endpoint;
}

LeaseRequest TraceLease(std::uint32_t number, std::uint32_t workers, std::uint32_t count_max) {
  LeaseRequest request;
  request.tenant = "a";
  request.keep_alive = kSecond;
  phub_lease& lease = request.lease;
  lease.number = number;
  lease.slot_count = kSlots;
  lease.worker_count = workers;
  lease.count_max = count_max;
  lease.key = {{number * 7u, 0x1234567890abcdef}};
  lease.core_loop = TraceEndpoint(kCoreLoopHost, 2000);
  for (std::uint32_t i = 0; i < workers; ++i)
    lease.workers[i] =
        TraceEndpoint(static_cast<std::uint8_t>(i + 1), static_cast<std::uint16_t>(1000 + i));
  return request;
}

std::uint32_t Trace::PhaseNear(std::uint32_t phase) {
  const std::uint32_t kind = Below(100);
  if (kind < 62) return phase;
  if (kind < 85) return phase + 1;
  if (kind < 90) return phase - 1;
  if (kind < 93) return phase - 2 - Below(3);
  if (kind < 97) return phase + 2 + Below(3);
  return static_cast<std::uint32_t>(random_());
}

phub_packet Trace::Header(const Engine& engine) {
  phub_packet packet{};
  packet.lease = lease_.number;
  packet.slot = static_cast<__u16>(Below(lease_.slot_count));
  packet.worker = static_cast<__u8>(Below(lease_.worker_count));
  phub_slot slot{};
  engine.ReadSlot(lease_.number, packet.slot, slot, {});
  packet.phase = PhaseNear(slot.phase);
  // All contributions to a phase have one exponent and length, so most agree.
  const std::uint32_t common = packet.phase * 31 + packet.slot;
  packet.exponent = static_cast<__u8>(Chance(4) ? Below(256) : common % 256);
  packet.next_exponent = static_cast<__u8>(Below(256));
  const std::uint32_t kind = Below(100);
  packet.kind = kind < 75   ? PHUB_PACKET_PAYLOAD
                : kind < 92 ? PHUB_PACKET_NACK
                            : PHUB_PACKET_PARAMETERS;
  if (Chance(2)) packet.kind = static_cast<__u8>(Below(256));
  if (packet.kind == PHUB_PACKET_NACK) {
    packet.count = static_cast<__u16>(Below(3));
    const phub_nack nack = {.number = static_cast<__u16>(nacks_ += Below(2)), .slot = packet.slot};
    phub_packet_set_nack(&packet, &nack);
  } else {
    packet.count = static_cast<__u16>(common % 7 == 0 ? 0 : common * 97 % (lease_.count_max + 1));
  }
  if (Chance(2)) packet.count = static_cast<__u16>(Below(lease_.count_max + 3));
  if (packet.kind == PHUB_PACKET_PARAMETERS && Chance(50)) packet.worker = PHUB_EVERY_WORKER;
  return packet;
}

void Trace::SpoilHeader(phub_packet& packet, phub_endpoint& source) {
  switch (Below(6)) {
    case 0: packet.lease += 1 + Below(3); break;
    case 1: packet.worker = static_cast<__u8>(Below(256)); break;
    case 2: packet.slot = static_cast<__u16>(lease_.slot_count + Below(3)); break;
    case 3: source.port = static_cast<__u16>(source.port ^ (1u << Below(16))); break;
    case 4: source.address[1] ^= __u64{1} << (32 + Below(32)); break;
    default: packet.payload_sum += 1 + Below(5); break;
  }
}

void Trace::SpoilBytes(std::vector<std::uint8_t>& bytes) {
  const auto length = static_cast<std::uint32_t>(bytes.size());
  switch (Below(5)) {
    case 0: bytes.resize(Below(length)); break;
    case 1: bytes.resize(length + 1 + Below(8)); break;
    case 2: bytes.resize(length + Below(9000)); break;  // also more than the program can be given
    case 3: bytes[Below(PHUB_PACKET_BYTES)] ^= static_cast<std::uint8_t>(1u << Below(8)); break;
    default: bytes[Below(length)] ^= static_cast<std::uint8_t>(1u << Below(8)); break;
  }
}

TracePacket Trace::Next(const Engine& engine) {
  if (!sent_.empty() && Chance(15)) {
    const auto at = Chance(50) ? sent_.size() - 1 : Below(static_cast<std::uint32_t>(sent_.size()));
    return sent_[at];
  }
  phub_packet packet = Header(engine);
  TracePacket next;
  next.source = packet.kind == PHUB_PACKET_NACK || packet.kind == PHUB_PACKET_PARAMETERS
                    ? lease_.core_loop
                    : lease_.workers[packet.worker % PHUB_WORKERS_MAX];
  next.bytes.resize(PHUB_PACKET_BYTES + 4u * packet.count);
  for (std::size_t at = PHUB_PACKET_BYTES; at < next.bytes.size(); at += 4) {
    const auto value = static_cast<__u32>(random_());
    phub_store32(next.bytes.data() + at, value);
    packet.payload_sum += value;
  }
  if (Chance(8)) SpoilHeader(packet, next.source);
  phub_packet_encode(&packet, &lease_.key, next.bytes.data());
  if (Chance(8)) SpoilBytes(next.bytes);
  sent_.push_back(next);
  if (sent_.size() > kRemembered) sent_.pop_front();
  return next;
}

}  // namespace phub::aggregator
