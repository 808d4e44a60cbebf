#include "common/aggregation/packet.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <vector>

namespace phub::aggregation {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr phub_endpoint EndpointOf(std::uint16_t port) { return {{1, 2}, port}; }

phub_lease SomeLease() {
  phub_lease lease{};
  lease.number = 77;
  lease.slot_count = 10;
  lease.worker_count = 3;
  lease.count_max = 350;
  lease.key = {{0x0706050403020100, 0x0f0e0d0c0b0a0908}};
  lease.aggregator = EndpointOf(100);
  lease.core_loop = EndpointOf(200);
  for (std::uint16_t i = 0; i < 3; ++i) lease.workers[i] = EndpointOf(i);
  return lease;
}

phub_packet SomePayload() {
  phub_packet packet{};
  packet.lease = 77;
  packet.phase = 0x12345678;
  packet.slot = 9;
  packet.kind = PHUB_PACKET_PAYLOAD;
  packet.worker = 2;
  packet.exponent = 130;
  packet.next_exponent = 131;
  return packet;
}

Bytes Datagram(phub_packet packet, const std::vector<std::uint32_t>& payload,
               const phub_lease& lease = SomeLease()) {
  Bytes bytes(PHUB_PACKET_BYTES + 4 * payload.size());
  for (std::size_t i = 0; i < payload.size(); ++i)
    phub_store32(&bytes[PHUB_PACKET_BYTES + 4 * i], payload[i]);
  packet.count = static_cast<std::uint16_t>(payload.size());
  packet.payload_sum = phub_payload_sum(bytes.data() + PHUB_PACKET_BYTES,
                                        static_cast<std::uint32_t>(payload.size()));
  phub_packet_encode(&packet, &lease.key, bytes.data());
  return bytes;
}

phub_check Check(const Bytes& bytes, std::uint16_t port = 2,
                 std::uint32_t kinds = PHUB_KINDS_FROM_WORKERS,
                 const phub_lease& lease = SomeLease()) {
  // An exact copy, so that the address sanitizer finds reads behind the datagram.
  const std::vector<std::uint8_t> copy(bytes.begin(), bytes.end());
  const phub_endpoint source = EndpointOf(port);
  phub_packet packet{};
  return phub_packet_check(&lease, kinds, copy.data(), static_cast<std::uint32_t>(copy.size()),
                           &source, &packet);
}

// The authors' test vectors: the key and the message are 0, 1, 2, ...
TEST(SumPacket, TheTagIsSipHash24) {
  std::array<std::uint8_t, 24> bytes{};
  for (std::uint8_t i = 0; i < bytes.size(); ++i) bytes[i] = i;
  const phub_lease_key key = SomeLease().key;
  EXPECT_EQ(phub_siphash(&key, bytes.data(), 0), 0x726fdb47dd0e0e31u);
  EXPECT_EQ(phub_siphash(&key, bytes.data(), 1), 0x93f5f5799a932462u);
  EXPECT_EQ(phub_siphash(&key, bytes.data(), 2), 0x3f2acc7f57c29bdbu);
  EXPECT_EQ(phub_siphash(&key, bytes.data(), 3), 0xb8ad50c6f649af94u);
}

TEST(SumPacket, HasTheDocumentedLayout) {
  const Bytes bytes = Datagram(SomePayload(), {5, 0xfffffffe});
  const Bytes header(bytes.begin(), bytes.begin() + 24);
  EXPECT_EQ(header, (Bytes{'P', 'S', 2, 1, 77, 0,   0,   0, 0x78, 0x56, 0x34, 0x12,
                           9,   0,   2, 0, 2,  130, 131, 0, 3,    0,    0,    0}));
  phub_packet read{};
  phub_packet_decode(bytes.data(), &read);
  EXPECT_EQ(read.lease, 77u);
  EXPECT_EQ(read.phase, 0x12345678u);
  EXPECT_EQ(read.slot, 9);
  EXPECT_EQ(read.count, 2);
  EXPECT_EQ(read.kind, PHUB_PACKET_PAYLOAD);
  EXPECT_EQ(read.worker, 2);
  EXPECT_EQ(read.exponent, 130);
  EXPECT_EQ(read.next_exponent, 131);
  EXPECT_EQ(read.payload_sum, 3u);
  EXPECT_EQ(Check(bytes), PHUB_CHECK_GOOD);
}

TEST(SumPacket, EveryTruncatedDatagramIsRefused) {
  const Bytes bytes = Datagram(SomePayload(), {1, 2, 3});
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(Check(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size))),
              PHUB_CHECK_TRUNCATED)
        << size;
}

TEST(SumPacket, OversizedDatagramsAreRefused) {
  Bytes bytes = Datagram(SomePayload(), {1, 2, 3});
  bytes.push_back(0);
  EXPECT_EQ(Check(bytes), PHUB_CHECK_OVERSIZED);
  EXPECT_EQ(Check(Datagram(SomePayload(), std::vector<std::uint32_t>(350, 1))), PHUB_CHECK_GOOD);
  EXPECT_EQ(Check(Datagram(SomePayload(), std::vector<std::uint32_t>(351, 1))),
            PHUB_CHECK_OVERSIZED);
  phub_packet missing = SomePayload();
  missing.kind = PHUB_PACKET_MISSING;
  EXPECT_EQ(Check(Datagram(missing, {}), 100, PHUB_KINDS_TO_WORKERS), PHUB_CHECK_GOOD);
  EXPECT_EQ(Check(Datagram(missing, {1}), 100, PHUB_KINDS_TO_WORKERS), PHUB_CHECK_OVERSIZED)
      << "it has no payload";
}

TEST(SumPacket, WrongFieldsAreRefusedByReason) {
  phub_packet packet = SomePayload();
  packet.lease = 76;
  EXPECT_EQ(Check(Datagram(packet, {1})), PHUB_CHECK_WRONG_LEASE);
  packet = SomePayload();
  packet.worker = 3;
  EXPECT_EQ(Check(Datagram(packet, {1})), PHUB_CHECK_WRONG_WORKER);
  packet.worker = PHUB_EVERY_WORKER;
  EXPECT_EQ(Check(Datagram(packet, {1})), PHUB_CHECK_WRONG_WORKER);
  packet = SomePayload();
  packet.slot = 10;
  EXPECT_EQ(Check(Datagram(packet, {1})), PHUB_CHECK_WRONG_SLOT);
  for (const std::uint8_t kind : std::initializer_list<std::uint8_t>{0, 2, 4, 7, 31, 32, 33, 255}) {
    packet = SomePayload();
    packet.kind = kind;
    EXPECT_EQ(Check(Datagram(packet, {})), PHUB_CHECK_WRONG_KIND) << int{kind};
  }
  Bytes bytes = Datagram(SomePayload(), {1});
  for (const std::size_t at : {0u, 1u, 2u, 19u}) {
    Bytes foreign = bytes;
    foreign[at] ^= 1;
    EXPECT_EQ(Check(foreign), PHUB_CHECK_FOREIGN) << at;
  }
  bytes.back() ^= 1;
  EXPECT_EQ(Check(bytes), PHUB_CHECK_CORRUPT);
}

TEST(SumPacket, NoLeaseAdmitsNothing) {
  phub_lease none = SomeLease();
  none.number = 0;
  phub_packet packet = SomePayload();
  packet.lease = 0;
  EXPECT_EQ(Check(Datagram(packet, {1}), 2, PHUB_KINDS_FROM_WORKERS, none), PHUB_CHECK_WRONG_LEASE);
}

TEST(SumPacket, AnotherPortOrAddressIsRefused) {
  const Bytes bytes = Datagram(SomePayload(), {1});
  EXPECT_EQ(Check(bytes, 1), PHUB_CHECK_WRONG_SOURCE) << "another worker's port";
  EXPECT_EQ(Check(bytes, 100), PHUB_CHECK_WRONG_SOURCE);
  const phub_lease lease = SomeLease();
  phub_endpoint source = EndpointOf(2);
  source.address[1] = 3;
  phub_packet packet{};
  EXPECT_EQ(phub_packet_check(&lease, PHUB_KINDS_FROM_WORKERS, bytes.data(),
                              static_cast<std::uint32_t>(bytes.size()), &source, &packet),
            PHUB_CHECK_WRONG_SOURCE);
}

TEST(SumPacket, EveryChangedBitOfHeaderAndPayloadIsRefused) {
  const Bytes bytes = Datagram(SomePayload(), {1, 2});
  std::set<phub_check> reasons;
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    Bytes changed = bytes;
    changed[bit / 8] = static_cast<std::uint8_t>(changed[bit / 8] ^ (1u << (bit % 8)));
    const phub_check reason = Check(changed);
    EXPECT_NE(reason, PHUB_CHECK_GOOD) << bit;
    reasons.insert(reason);
  }
  EXPECT_TRUE(reasons.contains(PHUB_CHECK_FORGED));
  phub_lease other = SomeLease();
  other.key.words[1] ^= 1;
  EXPECT_EQ(Check(Datagram(SomePayload(), {1, 2}, other)), PHUB_CHECK_FORGED);
}

TEST(SumPacket, EachKindComesOnlyFromItsSender) {
  phub_packet packet = SomePayload();
  packet.kind = PHUB_PACKET_SUM;
  packet.worker = PHUB_EVERY_WORKER;
  const Bytes sum = Datagram(packet, {1, 2});
  EXPECT_EQ(Check(sum, 100, PHUB_KINDS_TO_CORE_LOOP), PHUB_CHECK_GOOD);
  EXPECT_EQ(Check(sum, 2, PHUB_KINDS_TO_CORE_LOOP), PHUB_CHECK_WRONG_SOURCE) << "from a worker";
  EXPECT_EQ(Check(sum, 200, PHUB_KINDS_TO_CORE_LOOP), PHUB_CHECK_WRONG_SOURCE);
  EXPECT_EQ(Check(sum, 2), PHUB_CHECK_WRONG_KIND) << "at the aggregator";
  packet.kind = PHUB_PACKET_NACK;
  const Bytes nack = Datagram(packet, {1});
  EXPECT_EQ(Check(nack, 200, PHUB_KINDS_FROM_CORE_LOOP), PHUB_CHECK_GOOD);
  EXPECT_EQ(Check(nack, 1, PHUB_KINDS_FROM_CORE_LOOP), PHUB_CHECK_WRONG_SOURCE);
  EXPECT_EQ(Check(nack, 200, PHUB_KINDS_TO_WORKERS), PHUB_CHECK_WRONG_KIND);
  packet.kind = PHUB_PACKET_MISSING;
  packet.worker = 1;
  const Bytes missing = Datagram(packet, {});
  EXPECT_EQ(Check(missing, 100, PHUB_KINDS_TO_WORKERS), PHUB_CHECK_GOOD);
  EXPECT_EQ(Check(missing, 200, PHUB_KINDS_TO_WORKERS), PHUB_CHECK_WRONG_SOURCE);
}

TEST(SumPacket, RandomBytesAreRefused) {
  std::uint64_t state = 1;
  for (int i = 0; i < 20'000; ++i) {
    Bytes bytes(static_cast<std::size_t>(i % 80));
    for (std::uint8_t& byte : bytes) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<std::uint8_t>(state >> 56);
    }
    if (bytes.size() >= 4 && i % 2 == 0) {  // get past the first check
      phub_store16(bytes.data(), PHUB_PACKET_MAGIC);
      bytes[2] = PHUB_PACKET_VERSION;
    }
    EXPECT_NE(Check(bytes), PHUB_CHECK_GOOD);
  }
}

}  // namespace
}  // namespace phub::aggregation
