#include "common/wire/verbs_lane.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <vector>

namespace phub::wire {
namespace {

VerbsOffer SomeOffer() {
  VerbsOffer offer;
  offer.mtu = 5;
  offer.ack_timeout = 16;
  offer.lid = 0x1112;
  offer.queue_pair = 0x212223;
  offer.packet_sequence = 0x313233;
  for (unsigned i = 0; i < offer.gid.size(); ++i) offer.gid[i] = static_cast<std::byte>(0x80 + i);
  offer.inbox_address = 0x4142434445464748;
  offer.inbox_bytes = 65536;
  offer.inbox_key = 0x51525354;
  offer.messages_max = 128;
  offer.slot_count = 4;
  offer.slot_bytes = 4096;
  offer.slots_address = 0x6162636465666768;
  return offer;
}

bool Survives(const VerbsOffer& offer) {
  std::array<std::byte, kVerbsOfferBytes> bytes;
  bytes.fill(std::byte{0xEE});
  EncodeVerbsOffer(offer, bytes);
  VerbsOffer decoded;
  return DecodeVerbsOffer(bytes, decoded) && decoded == offer;
}

TEST(VerbsOffer, HasTheDocumentedBytes) {
  constexpr std::array<unsigned, kVerbsOfferBytes> kExpected = {
      'P',  'H',  'V',  'O',  0x05, 0x10, 0x12, 0x11, 0x23, 0x22, 0x21, 0x00, 0x33, 0x32, 0x31,
      0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8B, 0x8C, 0x8D,
      0x8E, 0x8F, 0x48, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41, 0x00, 0x00, 0x01, 0x00, 0x54,
      0x53, 0x52, 0x51, 0x80, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x68, 0x67, 0x66, 0x65, 0x64, 0x63, 0x62, 0x61};
  std::array<std::byte, kVerbsOfferBytes> bytes;
  EncodeVerbsOffer(SomeOffer(), bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(std::to_integer<unsigned>(bytes[i]), kExpected[i]) << "byte " << i;
  }
  EXPECT_TRUE(Survives(SomeOffer()));
}

TEST(VerbsOffer, RefusesWhatIsOutOfItsLimits) {
  using Change = std::function<void(VerbsOffer&)>;
  const std::vector<Change> broken = {
      [](VerbsOffer& o) { o.mtu = 0; },
      [](VerbsOffer& o) { o.mtu = kVerbsMtuMax + 1; },
      [](VerbsOffer& o) { o.ack_timeout = 0; },
      [](VerbsOffer& o) { o.ack_timeout = kAckTimeoutMax + 1; },
      [](VerbsOffer& o) { o.queue_pair = 0; },
      [](VerbsOffer& o) { o.queue_pair = kQueuePairNumberMax + 1; },
      [](VerbsOffer& o) { o.packet_sequence = kPacketSequenceMax + 1; },
      [](VerbsOffer& o) { o.inbox_bytes = kInboxBytesMin / 2; },
      [](VerbsOffer& o) { o.inbox_bytes = kInboxBytesMax * 2; },
      [](VerbsOffer& o) { o.inbox_bytes += 64; },
      [](VerbsOffer& o) { o.inbox_address = 0; },
      [](VerbsOffer& o) { o.inbox_address = UINT64_MAX - 100; },
      [](VerbsOffer& o) { o.messages_max = kVerbsMessagesMin - 1; },
      [](VerbsOffer& o) { o.messages_max = kVerbsMessagesMax + 1; },
      [](VerbsOffer& o) { o.slot_count = kSlotsPerLaneMax + 1; },
      [](VerbsOffer& o) { o.slot_count = 0; },
      [](VerbsOffer& o) { o.slot_bytes = 0; },
      [](VerbsOffer& o) { o.slot_bytes = 4097; },
      [](VerbsOffer& o) { o.slot_bytes = kChunkBytesMax + 64; },
      [](VerbsOffer& o) { o.slots_address = 0; },
      [](VerbsOffer& o) { o.slots_address = UINT64_MAX - 4096; }};
  for (std::size_t i = 0; i < broken.size(); ++i) {
    VerbsOffer offer = SomeOffer();
    broken[i](offer);
    EXPECT_FALSE(Survives(offer)) << i;
  }
}

TEST(VerbsOffer, MayHaveNoSlots) {
  VerbsOffer offer = SomeOffer();
  offer.slot_count = offer.slot_bytes = 0;
  offer.slots_address = 0;
  EXPECT_TRUE(Survives(offer));
}

TEST(VerbsControl, ReadsBack) {
  const std::vector<VerbsControl> controls = {
      {.kind = VerbsControlKind::kKeys, .inbox_key = 7, .slots_key = 8},
      {.kind = VerbsControlKind::kRegion, .index = 3, .key = 9, .address = 1 << 20, .bytes = 4096}};
  for (const VerbsControl& control : controls) {
    std::array<std::byte, kVerbsControlBytes> bytes;
    EncodeVerbsControl(control, bytes);
    VerbsControl decoded;
    ASSERT_TRUE(DecodeVerbsControl(bytes, decoded));
    EXPECT_EQ(decoded, control);
    bytes[5] = std::byte{1};
    EXPECT_FALSE(DecodeVerbsControl(bytes, decoded)) << "a byte that has to be zero";
  }
}

TEST(VerbsControl, RefusesARegionThatWraps) {
  std::array<std::byte, kVerbsControlBytes> bytes;
  EncodeVerbsControl({.kind = VerbsControlKind::kRegion, .address = UINT64_MAX - 10, .bytes = 100},
                     bytes);
  VerbsControl decoded;
  EXPECT_FALSE(DecodeVerbsControl(bytes, decoded));
}

TEST(VerbsHello, IsNoHelloOfAnotherLane) {
  const LaneHello hello{.version_min = 1, .version_max = 1, .rank = {3}};
  std::array<std::byte, kLaneHelloBytes> bytes;
  EncodeVerbsHello(hello, bytes);
  LaneHello decoded;
  EXPECT_FALSE(DecodeLaneHello(bytes, decoded));
  ASSERT_TRUE(DecodeVerbsHello(bytes, decoded));
  EXPECT_EQ(decoded, hello);
  EncodeLaneHello(hello, bytes);
  EXPECT_FALSE(DecodeVerbsHello(bytes, decoded));
}

}  // namespace
}  // namespace phub::wire
