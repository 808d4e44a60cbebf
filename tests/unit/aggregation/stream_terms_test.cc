#include "common/aggregation/stream_terms.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace phub::aggregation {
namespace {

using TermsBytes = std::array<std::byte, kStreamTermsBytes>;

StreamTerms ExampleTerms() {
  return {.lease = LeaseNumber{0x01020304},
          .worker = 2,
          .worker_count = 3,
          .count_max = 350,
          .geometry = {.positions = 8, .blocks = 47},
          .key = {{0x1112131415161718, 0x2122232425262728}},
          .aggregator = {.address = {0x3132333435363738, 0x4142434445464748}, .port = 0x5152}};
}

TermsBytes EncodedTerms(const StreamTerms& terms) {
  TermsBytes bytes;
  bytes.fill(std::byte{0xEE});
  EncodeStreamTerms(terms, bytes);
  return bytes;
}

TEST(SumTerms, HaveTheDocumentedLayout) {
  const TermsBytes bytes = EncodedTerms(ExampleTerms());
  const auto at = [&](std::size_t i) { return std::to_integer<int>(bytes[i]); };
  EXPECT_EQ(at(0), 0x04);
  EXPECT_EQ(at(3), 0x01);
  EXPECT_EQ(at(4), 2);
  EXPECT_EQ(at(5), 3);
  EXPECT_EQ(at(6) + 256 * at(7), 350);
  EXPECT_EQ(at(8), 8);
  EXPECT_EQ(at(12), 47);
  EXPECT_EQ(at(16), 0x18);
  EXPECT_EQ(at(24), 0x28);
  EXPECT_EQ(at(32), 0x38);
  EXPECT_EQ(at(40), 0x48);
  EXPECT_EQ(at(48), 0x52);
  EXPECT_EQ(at(49), 0x51);
  for (std::size_t i = 50; i < bytes.size(); ++i) EXPECT_EQ(at(i), 0) << i;
}

TEST(SumTerms, AreDecodedAsTheyWereEncoded) {
  StreamTerms decoded;
  ASSERT_TRUE(DecodeStreamTerms(EncodedTerms(ExampleTerms()), decoded));
  EXPECT_TRUE(decoded == ExampleTerms());
  const phub_lease lease = LeaseOf(decoded);
  EXPECT_EQ(lease.number, 0x01020304u);
  EXPECT_EQ(lease.slot_count, 8u * 47);
  EXPECT_EQ(lease.worker_count, 3u);
  EXPECT_EQ(lease.count_max, 350u);
}

TEST(SumTerms, ThatNobodyCanFollowAreRefused) {
  const auto accepted = [](std::size_t at, std::uint8_t value) {
    TermsBytes bytes = EncodedTerms(ExampleTerms());
    bytes[at] = std::byte{value};
    StreamTerms untouched;
    untouched.worker = 77;
    const bool decoded = DecodeStreamTerms(bytes, untouched);
    EXPECT_TRUE(decoded || untouched.worker == 77);
    return decoded;
  };
  EXPECT_TRUE(accepted(4, 1));
  EXPECT_FALSE(accepted(4, 3)) << "the number of a worker that there is not";
  EXPECT_FALSE(accepted(5, PHUB_WORKERS_MAX + 1));
  EXPECT_FALSE(accepted(7, 0xff)) << "more integers than a datagram has";
  EXPECT_FALSE(accepted(8, 0)) << "no position";
  EXPECT_TRUE(accepted(9, 4)) << "1032 positions of 47 blocks";
  EXPECT_FALSE(accepted(9, 8)) << "more slots than a datagram can name";
  EXPECT_FALSE(accepted(12, 0)) << "no block";
  EXPECT_FALSE(accepted(12, kChunkBlocksMax + 1));
  EXPECT_FALSE(accepted(55, 1)) << "a reserved byte";
  TermsBytes bytes = EncodedTerms(ExampleTerms());
  std::fill_n(bytes.begin(), 4, std::byte{0});
  StreamTerms terms;
  EXPECT_FALSE(DecodeStreamTerms(bytes, terms)) << "no lease";
  bytes = EncodedTerms(ExampleTerms());
  bytes[48] = bytes[49] = std::byte{0};
  EXPECT_FALSE(DecodeStreamTerms(bytes, terms)) << "no port";
  EXPECT_FALSE(DecodeStreamTerms(std::span(bytes).first(55), terms));
}

TEST(SumTerms, BlocksOfAChunk) {
  EXPECT_EQ(BlocksOf(1, 350), 1u);
  EXPECT_EQ(BlocksOf(350, 350), 1u);
  EXPECT_EQ(BlocksOf(351, 350), 2u);
  EXPECT_EQ(BlocksOf(16384, 350), 47u) << "64 KiB of f32";
  EXPECT_EQ(BlocksOf(32768, 350), 94u) << "64 KiB of f16";
  EXPECT_EQ(BlocksOf(96 * 350, 350), 96u);
  EXPECT_EQ(BlocksOf(96 * 350 + 1, 350), 0u) << "its exponents do not fit into a message";
  EXPECT_EQ(BlocksOf(UINT32_MAX, 848), 0u);
}

}  // namespace
}  // namespace phub::aggregation
