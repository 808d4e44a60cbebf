#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/wire/header_bytes.h"

namespace phub::wire {
namespace {

using HyperParametersBytes = std::array<std::byte, kHyperParametersBytes>;

TEST(MessageHeader, HasTheDocumentedBytes) {
  constexpr std::array<unsigned, kHeaderBytes> kExpected = {
      0x50, 0x48, 0x01, 0x01, 0x56, 0x34, 0x12, 0x00, 0x18, 0x17, 0x16, 0x15, 0x14,
      0x13, 0x12, 0x11, 0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, 0x34, 0x33,
      0x32, 0x31, 0x44, 0x43, 0x42, 0x41, 0x54, 0x53, 0x52, 0x51, 0x64, 0x63, 0x62,
      0x61, 0x74, 0x73, 0x72, 0x71, 0x84, 0x83, 0x82, 0x81, 0x01, 0x06, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x98, 0x97, 0x96, 0x95, 0x94, 0x93, 0x92, 0x91};
  const HeaderBytes bytes = Encoded(DistinctHeader());
  for (std::size_t i = 0; i < kHeaderBytes; ++i) {
    EXPECT_EQ(std::to_integer<unsigned>(bytes[i]), kExpected[i]) << "byte " << i;
  }
}

TEST(MessageHeader, EveryKindAndOperationRoundTrips) {
  for (const auto kind : {MessageKind::kGradient, MessageKind::kParameters, MessageKind::kCredit,
                          MessageKind::kHyperParameters, MessageKind::kPull, MessageKind::kSummed,
                          MessageKind::kDecision, MessageKind::kAnnounce, MessageKind::kStreamIs,
                          MessageKind::kAssign, MessageKind::kUseTcp, MessageKind::kMissing}) {
    for (const auto operation :
         {RoundOperation::kReduce, RoundOperation::kAssign, RoundOperation::kLoad}) {
      MessageHeader header = DistinctHeader();
      header.kind = kind;
      header.operation = operation;
      if (kind >= MessageKind::kAnnounce) header.version = kStreamVersion;
      const bool has_payload = kind == MessageKind::kGradient || kind == MessageKind::kParameters ||
                               kind == MessageKind::kHyperParameters ||
                               kind == MessageKind::kAnnounce || kind == MessageKind::kStreamIs ||
                               kind == MessageKind::kAssign;
      header.flags = FlagsOf(kind);
      if (kind == MessageKind::kSummed || kind == MessageKind::kDecision ||
          kind == MessageKind::kAssign) {
        header.value_bits = std::exchange(header.reply_address, {}).value;
      }
      header.payload_bytes = has_payload ? 32 : 0;
      MessageHeader decoded;
      ASSERT_EQ(DecodeHeader(Encoded(header), decoded), DecodeError::kNone);
      EXPECT_EQ(decoded, header);
    }
  }
}

TEST(MessageHeader, ExtremeFieldsRoundTrip) {
  MessageHeader header;
  header.kind = MessageKind::kParameters;
  header.payload_bytes = kChunkBytesMax;
  header.incarnation = Incarnation::Max();
  header.iteration = Iteration::Max();
  header.membership_epoch = MembershipEpoch::Max();
  header.chunk = ChunkIndex::Max();
  header.slot = kNoSlot;
  header.hyper_version = HyperVersion::Max();
  header.key = KeyIndex::Max();
  header.root = Rank::Max();
  header.type = numeric::ElementType::kU8;
  header.reply_address = SharedAddress::Max();
  MessageHeader decoded;
  ASSERT_EQ(DecodeHeader(Encoded(header), decoded), DecodeError::kNone);
  EXPECT_EQ(decoded, header);
}

TEST(MessageHeader, EveryTruncatedLengthIsRefused) {
  const HeaderBytes bytes = Encoded(DistinctHeader());
  for (std::size_t length = 0; length < kHeaderBytes; ++length) {
    // A copy of this size on the heap: AddressSanitizer detects a read past its end.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<int>(length));
    EXPECT_EQ(Decode(cut), DecodeError::kTruncated) << "length " << length;
  }
}

TEST(MessageHeader, BytesBehindTheHeaderAreNotItsBusiness) {
  const HeaderBytes header = Encoded(DistinctHeader());
  std::vector<std::byte> bytes(header.begin(), header.end());
  bytes.resize(kHeaderBytes + 100, std::byte{0xFF});
  EXPECT_EQ(Decode(bytes), DecodeError::kNone);
}

TEST(MessageHeader, EveryOtherMagicByteIsRefused) {
  for (const std::size_t at : {0u, 1u}) {
    HeaderBytes bytes = Encoded(DistinctHeader());
    const std::byte right = bytes[at];
    for (unsigned value = 0; value < 256; ++value) {
      bytes[at] = static_cast<std::byte>(value);
      EXPECT_EQ(Decode(bytes), bytes[at] == right ? DecodeError::kNone : DecodeError::kMagic);
    }
  }
}

TEST(MessageHeader, EveryVersionOutsideTheRangeIsRefused) {
  for (unsigned version = 0; version < 256; ++version) {
    MessageHeader header = DistinctHeader();
    header.version = static_cast<std::uint8_t>(version);
    const bool spoken = version >= kLaneVersionMin && version <= kLaneVersion;
    EXPECT_EQ(Decode(Encoded(header)), spoken ? DecodeError::kNone : DecodeError::kVersion)
        << "version " << version;
  }
}

TEST(MessageHeader, EveryUnknownKindAndOperationIsRefused) {
  for (unsigned value = 0; value < 256; ++value) {
    MessageHeader header = DistinctHeader();
    header.payload_bytes = 0;
    header.kind = static_cast<MessageKind>(value);
    EXPECT_EQ(Decode(Encoded(header)),
              value >= 1 && value <= 7 ? DecodeError::kNone : DecodeError::kKind)
        << "kind " << value;
    header.kind = MessageKind::kGradient;
    header.operation = static_cast<RoundOperation>(value);
    EXPECT_EQ(Decode(Encoded(header)), value <= 2 ? DecodeError::kNone : DecodeError::kOperation)
        << "operation " << value;
  }
}

TEST(MessageHeader, AStreamsMessagesNeedTheirLaneVersion) {
  for (const auto kind : {MessageKind::kAnnounce, MessageKind::kStreamIs, MessageKind::kAssign,
                          MessageKind::kUseTcp, MessageKind::kMissing}) {
    for (std::uint8_t version = kLaneVersionMin; version <= kLaneVersion; ++version) {
      MessageHeader header = DistinctHeader();
      header.kind = kind;
      header.version = version;
      header.payload_bytes = 0;
      EXPECT_EQ(Decode(Encoded(header)),
                version < kStreamVersion ? DecodeError::kKind : DecodeError::kNone)
          << "kind " << static_cast<int>(kind) << " version " << static_cast<int>(version);
    }
  }
}

TEST(MessageHeader, AGatherNeedsItsLaneVersion) {
  MessageHeader header = DistinctHeader();
  header.operation = RoundOperation::kMove;
  for (std::uint8_t version = kLaneVersionMin; version <= kLaneVersion; ++version) {
    header.version = version;
    EXPECT_EQ(Decode(Encoded(header)),
              version < kMoveVersion ? DecodeError::kOperation : DecodeError::kNone);
  }
  MessageHeader decoded;
  ASSERT_EQ(DecodeHeader(Encoded(header), decoded), DecodeError::kNone);
  EXPECT_EQ(decoded, header);
}

TEST(MessageHeader, EveryUnknownTypeIsRefused) {
  for (unsigned value = 0; value < 256; ++value) {
    HeaderBytes bytes = Encoded(DistinctHeader());
    bytes[49] = static_cast<std::byte>(value);
    EXPECT_EQ(Decode(bytes), value >= 1 && value <= 7 ? DecodeError::kNone : DecodeError::kType);
  }
}

TEST(MessageHeader, EveryReservedBitIsRefused) {
  for (std::size_t at = 51; at < 56; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      HeaderBytes bytes = Encoded(DistinctHeader());
      bytes[at] = std::byte{1} << bit;
      EXPECT_EQ(Decode(bytes), DecodeError::kReserved) << "byte " << at << " bit " << bit;
    }
  }
}

TEST(MessageHeader, PayloadBytesAreBoundedByKind) {
  constexpr std::uint32_t kOver = std::numeric_limits<std::uint32_t>::max();
  struct Case {
    MessageKind kind;
    std::uint32_t bytes_max;
  };
  for (const Case& each :
       {Case{MessageKind::kGradient, kChunkBytesMax},
        Case{MessageKind::kParameters, kChunkBytesMax}, Case{MessageKind::kCredit, 0},
        Case{MessageKind::kPull, 0}, Case{MessageKind::kSummed, 0}, Case{MessageKind::kDecision, 0},
        Case{MessageKind::kHyperParameters, kInlineBytesMax},
        Case{MessageKind::kAnnounce, kInlineBytesMax},
        Case{MessageKind::kStreamIs, kInlineBytesMax}, Case{MessageKind::kAssign, kInlineBytesMax},
        Case{MessageKind::kUseTcp, 0}, Case{MessageKind::kMissing, kInlineBytesMax}}) {
    for (const std::uint32_t bytes : {0u, 1u, each.bytes_max, each.bytes_max + 1, kOver}) {
      MessageHeader header = DistinctHeader();
      header.kind = each.kind;
      header.version = kLaneVersion;
      header.payload_bytes = bytes;
      EXPECT_EQ(Decode(Encoded(header)),
                bytes <= each.bytes_max ? DecodeError::kNone : DecodeError::kPayloadBytes)
          << "kind " << static_cast<int>(each.kind) << " bytes " << bytes;
    }
  }
}

TEST(MessageHeader, AFlagThatTheKindHasNotIsRefused) {
  for (unsigned kind = 1; kind <= 12; ++kind) {
    MessageHeader header = DistinctHeader();
    header.version = kLaneVersion;
    header.kind = static_cast<MessageKind>(kind);
    header.payload_bytes = 0;
    for (unsigned flags = 0; flags < 256; ++flags) {
      header.flags = static_cast<std::uint8_t>(flags);
      const bool known = (flags & ~unsigned{FlagsOf(header.kind)}) == 0;
      EXPECT_EQ(Decode(Encoded(header)), known ? DecodeError::kNone : DecodeError::kReserved)
          << "kind " << kind << " flags " << flags;
    }
  }
}

TEST(MessageHeader, ARefusedHeaderLeavesTheOutputAlone) {
  HeaderBytes bytes = Encoded(DistinctHeader());
  bytes[55] = std::byte{1};
  MessageHeader header;
  header.chunk = {77};
  const MessageHeader before = header;
  ASSERT_EQ(DecodeHeader(bytes, header), DecodeError::kReserved);
  EXPECT_EQ(header, before);
}

TEST(DecodeError, HasANameForEachValue) {
  std::set<std::string> names;
  for (int value = 0; value <= static_cast<int>(DecodeError::kPayloadBytes); ++value) {
    names.insert(ToString(static_cast<DecodeError>(value)));
  }
  EXPECT_EQ(names.size(), 9u);
  EXPECT_FALSE(names.contains("unknown"));
}

HyperParameters SomeHyperParameters() {
  HyperParameters values;
  values.learning_rate = 0.1;
  values.momentum = 0.9;
  values.dampening = -0.0;
  values.weight_decay = 1e-310;  // a denormal
  return values;
}

HyperParametersBytes Encoded(const HyperParameters& values) {
  HyperParametersBytes bytes;
  bytes.fill(std::byte{0xEE});
  EncodeHyperParameters(values, bytes);
  return bytes;
}

bool DecodesHyperParameters(std::span<const std::byte> bytes) {
  HyperParameters values;
  return DecodeHyperParameters(bytes, values);
}

TEST(HyperParameters, RoundTripBitForBit) {
  const HyperParametersBytes bytes = Encoded(SomeHyperParameters());
  HyperParameters decoded;
  ASSERT_TRUE(DecodeHyperParameters(bytes, decoded));
  EXPECT_EQ(decoded, SomeHyperParameters());
  EXPECT_EQ(Encoded(decoded), bytes);  // -0 and 0 compare equal; their bytes do not
}

// In wire order.
constexpr double HyperParameters::*kFields[] = {&HyperParameters::learning_rate,
                                                &HyperParameters::weight_decay,
                                                &HyperParameters::clip_value,
                                                &HyperParameters::momentum,
                                                &HyperParameters::dampening,
                                                &HyperParameters::beta1,
                                                &HyperParameters::beta2,
                                                &HyperParameters::epsilon,
                                                &HyperParameters::learning_rate_decay,
                                                &HyperParameters::initial_accumulator,
                                                &HyperParameters::alpha};
constexpr std::size_t kReservedAt = std::size(kFields) * sizeof(double);

TEST(HyperParameters, FieldsLieInTheDocumentedOrder) {
  HyperParameters values;
  for (std::uint64_t field = 0; field < std::size(kFields); ++field) {
    values.*kFields[field] = std::bit_cast<double>(0x0102030405060700u + field);
  }
  const HyperParametersBytes bytes = Encoded(values);
  for (unsigned field = 0; field < std::size(kFields); ++field) {
    EXPECT_EQ(std::to_integer<unsigned>(bytes[field * 8]), field);
    for (unsigned i = 1; i < 8; ++i) {
      EXPECT_EQ(std::to_integer<unsigned>(bytes[field * 8 + i]), 8 - i);
    }
  }
  EXPECT_TRUE(std::all_of(bytes.begin() + kReservedAt, bytes.end(),
                          [](std::byte each) { return each == std::byte{0}; }));
}

TEST(HyperParameters, EveryOtherLengthIsRefused) {
  const HyperParametersBytes bytes = Encoded(SomeHyperParameters());
  for (std::size_t length = 0; length <= kInlineBytesMax; ++length) {
    std::vector<std::byte> cut(bytes.begin(), bytes.end());
    cut.resize(length);
    cut.shrink_to_fit();
    EXPECT_EQ(DecodesHyperParameters(cut), length == kHyperParametersBytes) << "length " << length;
  }
}

TEST(HyperParameters, NotFiniteIsRefusedInEveryField) {
  using Limits = std::numeric_limits<double>;
  for (const double bad :
       {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), Limits::signaling_NaN()}) {
    for (const auto field : kFields) {
      HyperParameters values = SomeHyperParameters();
      values.*field = bad;
      EXPECT_FALSE(DecodesHyperParameters(Encoded(values)));
    }
  }
}

TEST(HyperParameters, EveryReservedBitIsRefused) {
  for (std::size_t at = kReservedAt; at < kHyperParametersBytes; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      HyperParametersBytes bytes = Encoded(SomeHyperParameters());
      bytes[at] = std::byte{1} << bit;
      EXPECT_FALSE(DecodesHyperParameters(bytes)) << "byte " << at << " bit " << bit;
    }
  }
}

}  // namespace
}  // namespace phub::wire
