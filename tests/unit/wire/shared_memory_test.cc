#include "common/wire/shared_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace phub::wire {
namespace {

SharedBatchRequest SomeRequest() {
  SharedBatchRequest request;
  request.version_min = 3;
  request.version_max = 5;
  request.batch = 0x11121314;
  request.rank = {0x21222324};
  request.incarnation = {0x3132333435363738};
  request.membership_epoch = {0x41424344};
  for (unsigned i = 0; i < kNonceBytes; ++i) request.nonce[i] = static_cast<std::byte>(0x80 + i);
  return request;
}

std::array<std::byte, kSharedBatchRequestBytes> Encoded(const SharedBatchRequest& request) {
  std::array<std::byte, kSharedBatchRequestBytes> bytes;
  bytes.fill(std::byte{0xEE});
  EncodeSharedBatchRequest(request, bytes);
  return bytes;
}

bool LaneDecodes(const SharedLane& lane) {
  std::array<std::byte, kSharedLaneBytes> bytes;
  EncodeSharedLane(lane, bytes);
  SharedLane decoded;
  return DecodeSharedLane(bytes, decoded) && decoded == lane;
}

bool BatchDecodes(const SharedBatch& batch) {
  std::array<std::byte, kSharedBatchBytes> bytes;
  bytes.fill(std::byte{0xEE});
  EncodeSharedBatch(batch, bytes);
  SharedBatch decoded;
  return DecodeSharedBatch(bytes, decoded) && decoded == batch;
}

TEST(SharedBatchRequest, HasTheDocumentedBytes) {
  constexpr std::array<unsigned, kSharedBatchRequestBytes> kExpected = {
      'P',  'H',  'L',  'B',  0x03, 0x05, 0x00, 0x00, 0x14, 0x13, 0x12, 0x11,
      0x24, 0x23, 0x22, 0x21, 0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31,
      0x44, 0x43, 0x42, 0x41, 0x00, 0x00, 0x00, 0x00, 0x80, 0x81, 0x82, 0x83,
      0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F};
  const auto bytes = Encoded(SomeRequest());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(std::to_integer<unsigned>(bytes[i]), kExpected[i]) << "byte " << i;
  }
  SharedBatchRequest decoded;
  ASSERT_TRUE(DecodeSharedBatchRequest(bytes, decoded));
  EXPECT_EQ(decoded, SomeRequest());
}

TEST(SharedBatchRequest, IsNoLaneHelloAndNoHelloIsOne) {
  LaneHello hello;
  EXPECT_FALSE(DecodeLaneHello(Encoded(SomeRequest()), hello));
  std::array<std::byte, kLaneHelloBytes> bytes;
  EncodeLaneHello({.version_min = 1, .version_max = 1}, bytes);
  SharedBatchRequest request;
  EXPECT_FALSE(DecodeSharedBatchRequest(bytes, request));
}

TEST(SharedBatchRequest, EveryOtherLengthAndEveryFixedBitIsRefused) {
  const auto bytes = Encoded(SomeRequest());
  SharedBatchRequest decoded;
  for (std::size_t length = 0; length <= 2 * bytes.size(); ++length) {
    std::vector<std::byte> cut(bytes.begin(), bytes.end());
    cut.resize(length);
    cut.shrink_to_fit();
    EXPECT_EQ(DecodeSharedBatchRequest(cut, decoded), length == bytes.size()) << length;
  }
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    const bool fixed = at < 4 || at == 6 || at == 7 || (at >= 28 && at < 32) || at >= 48;
    for (int bit = 0; fixed && bit < 8; ++bit) {
      auto changed = bytes;
      changed[at] ^= std::byte{1} << bit;
      EXPECT_FALSE(DecodeSharedBatchRequest(changed, decoded)) << "byte " << at << " bit " << bit;
    }
  }
  SharedBatchRequest empty_range = SomeRequest();
  empty_range.version_min = 6;
  EXPECT_FALSE(DecodeSharedBatchRequest(Encoded(empty_range), decoded));
}

TEST(SharedLane, TakesPowersOfTwoWithinLimitsOnly) {
  EXPECT_TRUE(LaneDecodes({256, 262144, 16, 65536}));
  EXPECT_TRUE(LaneDecodes({kRingRecordsMin, kArenaBytesMin, 0, 0}));
  EXPECT_TRUE(LaneDecodes({kRingRecordsMax, kArenaBytesMax, kSlotsPerLaneMax, kChunkBytesMax}));
  for (const std::uint32_t records : {0u, 1u, 2u, 3u, 100u, 2 * kRingRecordsMax, 1u << 31}) {
    EXPECT_FALSE(LaneDecodes({records, 262144, 0, 0})) << records;
  }
  for (const std::uint32_t bytes : {0u, 64u, 5000u, 2 * kArenaBytesMax, 1u << 31}) {
    EXPECT_FALSE(LaneDecodes({256, bytes, 0, 0})) << bytes;
  }
  EXPECT_FALSE(LaneDecodes({256, 262144, 1, 0}));
  EXPECT_FALSE(LaneDecodes({256, 262144, 0, 1}));
  EXPECT_FALSE(LaneDecodes({256, 262144, kSlotsPerLaneMax + 1, 1}));
  EXPECT_FALSE(LaneDecodes({256, 262144, 1, kChunkBytesMax + 1}));
  SharedLane decoded;
  const std::array<std::byte, kSharedLaneBytes + 1> longer{};
  EXPECT_FALSE(DecodeSharedLane(longer, decoded));
  EXPECT_FALSE(DecodeSharedLane(std::span(longer).first(kSharedLaneBytes - 1), decoded));
}

TEST(SharedBatch, TakesWhatFitsItsLimitsOnly) {
  EXPECT_TRUE(BatchDecodes({}));
  EXPECT_TRUE(BatchDecodes({100, 200, 0, 1}));
  EXPECT_TRUE(
      BatchDecodes({0, kSharedRegionBytesMax, 0, kGroupRegionsFirst + kGroupRegionsMax - 1}));
  EXPECT_FALSE(BatchDecodes({kSharedRegionBytesMax + 1, 0, 0, 0}));
  EXPECT_FALSE(BatchDecodes({0, UINT64_MAX, 0, 0}));
  EXPECT_FALSE(BatchDecodes({1, 1, kGroupRegionsFirst + kGroupRegionsMax, 0}));
  EXPECT_FALSE(BatchDecodes({1, 1, 0, kGroupRegionsFirst + kGroupRegionsMax}));
  EXPECT_FALSE(BatchDecodes({0, 1, 1, 0})) << "an index of nothing";
  std::array<std::byte, kSharedBatchBytes> bytes;
  EncodeSharedBatch({100, 200, 0, 1}, bytes);
  SharedBatch decoded;
  for (std::size_t at = 24; at < bytes.size(); ++at) {
    auto changed = bytes;
    changed[at] = std::byte{1};
    EXPECT_FALSE(DecodeSharedBatch(changed, decoded)) << at;
  }
  EXPECT_FALSE(DecodeSharedBatch(std::span(bytes).first(bytes.size() - 1), decoded));
}

}  // namespace
}  // namespace phub::wire
