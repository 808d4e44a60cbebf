#include "common/wire/lane_hello.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace phub::wire {
namespace {

using HelloBytes = std::array<std::byte, kLaneHelloBytes>;
using WelcomeBytes = std::array<std::byte, kLaneWelcomeBytes>;

LaneHello SomeHello() {
  LaneHello hello;
  hello.version_min = 3;
  hello.version_max = 5;
  hello.core = {0x11121314};
  hello.rank = {0x21222324};
  hello.incarnation = {0x3132333435363738};
  hello.membership_epoch = {0x41424344};
  for (unsigned i = 0; i < kNonceBytes; ++i) hello.nonce[i] = static_cast<std::byte>(0x80 + i);
  return hello;
}

HelloBytes Encoded(const LaneHello& hello) {
  HelloBytes bytes;
  bytes.fill(std::byte{0xEE});
  EncodeLaneHello(hello, bytes);
  return bytes;
}

WelcomeBytes Encoded(const LaneWelcome& welcome) {
  WelcomeBytes bytes;
  bytes.fill(std::byte{0xEE});
  EncodeLaneWelcome(welcome, bytes);
  return bytes;
}

bool DecodesHello(std::span<const std::byte> bytes) {
  LaneHello hello;
  return DecodeLaneHello(bytes, hello);
}

bool DecodesWelcome(std::span<const std::byte> bytes) {
  LaneWelcome welcome;
  return DecodeLaneWelcome(bytes, welcome);
}

TEST(LaneHello, HasTheDocumentedBytes) {
  constexpr std::array<unsigned, kLaneHelloBytes> kExpected = {
      'P',  'H',  'L',  'N',  0x03, 0x05, 0x00, 0x00, 0x14, 0x13, 0x12, 0x11,
      0x24, 0x23, 0x22, 0x21, 0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31,
      0x44, 0x43, 0x42, 0x41, 0x00, 0x00, 0x00, 0x00, 0x80, 0x81, 0x82, 0x83,
      0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F};
  const HelloBytes bytes = Encoded(SomeHello());
  for (std::size_t i = 0; i < kLaneHelloBytes; ++i) {
    EXPECT_EQ(std::to_integer<unsigned>(bytes[i]), kExpected[i]) << "byte " << i;
  }
}

TEST(LaneHello, RoundTrips) {
  LaneHello decoded;
  ASSERT_TRUE(DecodeLaneHello(Encoded(SomeHello()), decoded));
  EXPECT_EQ(decoded, SomeHello());
}

TEST(LaneHello, EveryOtherLengthIsRefused) {
  const HelloBytes bytes = Encoded(SomeHello());
  for (std::size_t length = 0; length <= 2 * kLaneHelloBytes; ++length) {
    std::vector<std::byte> cut(bytes.begin(), bytes.end());
    cut.resize(length);
    cut.shrink_to_fit();  // the allocation ends with the bytes
    EXPECT_EQ(DecodesHello(cut), length == kLaneHelloBytes) << "length " << length;
  }
}

TEST(LaneHello, EveryChangedMagicAndZeroBitIsRefused) {
  const auto is_fixed = [](std::size_t at) {
    return at < 4 || at == 6 || at == 7 || (at >= 28 && at < 32) || at >= 48;
  };
  for (std::size_t at = 0; at < kLaneHelloBytes; ++at) {
    if (!is_fixed(at)) continue;
    for (int bit = 0; bit < 8; ++bit) {
      HelloBytes bytes = Encoded(SomeHello());
      bytes[at] ^= std::byte{1} << bit;
      EXPECT_FALSE(DecodesHello(bytes)) << "byte " << at << " bit " << bit;
    }
  }
}

TEST(LaneHello, AnEmptyVersionRangeIsRefused) {
  LaneHello hello = SomeHello();
  hello.version_min = hello.version_max;
  EXPECT_TRUE(DecodesHello(Encoded(hello)));
  hello.version_min = static_cast<std::uint8_t>(hello.version_max + 1);
  EXPECT_FALSE(DecodesHello(Encoded(hello)));
}

TEST(LaneHello, ARefusedHelloLeavesTheOutputAlone) {
  HelloBytes bytes = Encoded(SomeHello());
  bytes[63] = std::byte{1};
  LaneHello hello;
  hello.rank = {77};
  const LaneHello before = hello;
  ASSERT_FALSE(DecodeLaneHello(bytes, hello));
  EXPECT_EQ(hello, before);
}

TEST(LaneWelcome, HasTheDocumentedBytes) {
  const WelcomeBytes bytes = Encoded(LaneWelcome{2, LaneRefusal::kNone, 1, 3});
  constexpr std::array<unsigned, kLaneWelcomeBytes> kExpected = {'P', 'H', 'L', 'W', 2, 0, 1, 3};
  for (std::size_t i = 0; i < kLaneWelcomeBytes; ++i) {
    EXPECT_EQ(std::to_integer<unsigned>(bytes[i]), kExpected[i]) << "byte " << i;
  }
}

TEST(LaneWelcome, AcceptanceAndEveryRefusalRoundTrip) {
  constexpr unsigned kLast = static_cast<unsigned>(LaneRefusal::kEncryption);
  for (unsigned value = 0; value < 256; ++value) {
    const auto refusal = static_cast<LaneRefusal>(value);
    const auto version = static_cast<std::uint8_t>(refusal == LaneRefusal::kNone ? 2 : 0);
    const LaneWelcome welcome{version, refusal, 1, 3};
    LaneWelcome decoded;
    ASSERT_EQ(DecodeLaneWelcome(Encoded(welcome), decoded), value <= kLast) << "refusal " << value;
    if (value <= kLast) {
      EXPECT_EQ(decoded, welcome);
    }
  }
}

TEST(LaneWelcome, TheChosenVersionMustFit) {
  constexpr auto kNone = LaneRefusal::kNone;
  EXPECT_TRUE(DecodesWelcome(Encoded(LaneWelcome{1, kNone, 1, 1})));
  // Receive an acceptance whose version is outside the daemon's own range, or missing. Expect:
  // refused.
  EXPECT_FALSE(DecodesWelcome(Encoded(LaneWelcome{4, kNone, 1, 3})));
  EXPECT_FALSE(DecodesWelcome(Encoded(LaneWelcome{1, kNone, 2, 3})));
  EXPECT_FALSE(DecodesWelcome(Encoded(LaneWelcome{0, kNone, 0, 3})));
  // Receive a refusal that has a version all the same. Expect: refused.
  EXPECT_FALSE(DecodesWelcome(Encoded(LaneWelcome{1, LaneRefusal::kNonce, 1, 3})));
  EXPECT_FALSE(DecodesWelcome(Encoded(LaneWelcome{0, LaneRefusal::kNonce, 3, 1})));
}

TEST(LaneWelcome, EveryOtherLengthIsRefused) {
  const WelcomeBytes bytes = Encoded(LaneWelcome{1, LaneRefusal::kNone, 1, 1});
  for (std::size_t length = 0; length <= 2 * kLaneWelcomeBytes; ++length) {
    std::vector<std::byte> cut(bytes.begin(), bytes.end());
    cut.resize(length);
    cut.shrink_to_fit();
    EXPECT_EQ(DecodesWelcome(cut), length == kLaneWelcomeBytes) << "length " << length;
  }
}

TEST(LaneWelcome, EveryChangedMagicAndZeroBitIsRefused) {
  for (std::size_t at = 0; at < kLaneWelcomeBytes; ++at) {
    if (at >= 4 && at < 8) continue;
    for (int bit = 0; bit < 8; ++bit) {
      WelcomeBytes bytes = Encoded(LaneWelcome{1, LaneRefusal::kNone, 1, 1});
      bytes[at] ^= std::byte{1} << bit;
      EXPECT_FALSE(DecodesWelcome(bytes)) << "byte " << at << " bit " << bit;
    }
  }
}

TEST(LaneRefusal, HasANameForEachValue) {
  std::set<std::string> names;
  for (int value = 0; value <= static_cast<int>(LaneRefusal::kCapacity); ++value) {
    names.insert(ToString(static_cast<LaneRefusal>(value)));
  }
  EXPECT_EQ(names.size(), 6u);
  EXPECT_FALSE(names.contains("unknown"));
}

}  // namespace
}  // namespace phub::wire
