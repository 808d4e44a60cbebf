// Headers of gradients of pooled keys.
#include <gtest/gtest.h>

#include "tests/unit/wire/header_bytes.h"

namespace phub::wire {
namespace {

TEST(MessageHeader, OnlyGradientsOfTheirLaneVersionStateAPooledRound) {
  MessageHeader header = DistinctHeader();
  header.operation = RoundOperation::kPool;
  header.hyper_version = {};
  header.key = {};
  header.root = {};
  header.pool = {.elements = 0x0102030405060708,
                 .sequence = 0x090a0b0c,
                 .reduction = numeric::Reduction::kProduct};
  for (std::uint8_t version = kLaneVersionMin; version <= kLaneVersion; ++version) {
    header.version = version;
    EXPECT_EQ(Decode(Encoded(header)),
              version < kPoolVersion ? DecodeError::kOperation : DecodeError::kNone);
  }
  MessageHeader decoded;
  ASSERT_EQ(DecodeHeader(Encoded(header), decoded), DecodeError::kNone);
  EXPECT_EQ(decoded, header);
  // Expect: an unknown reduction is refused, and so is one where none is stated.
  constexpr std::size_t kReductionAt = 51;
  HeaderBytes bytes = Encoded(header);
  bytes[kReductionAt] = std::byte{static_cast<std::uint8_t>(numeric::Reduction::kBitwiseXor) + 1};
  EXPECT_EQ(Decode(bytes), DecodeError::kReserved);
  bytes = Encoded(DistinctHeader());
  bytes[kReductionAt] = std::byte{1};
  EXPECT_EQ(Decode(bytes), DecodeError::kReserved);
  header.kind = MessageKind::kParameters;
  header.flags = 0;
  EXPECT_EQ(Decode(Encoded(header)), DecodeError::kOperation);
}

TEST(MessageHeader, APooledRoundThatMovesStatesItsRoot) {
  MessageHeader header = DistinctHeader();
  header.operation = RoundOperation::kPoolMove;
  header.hyper_version = {};
  header.key = {};
  header.root = Rank{0x01020304};
  header.pool = {.elements = 0x0102030405060708, .sequence = 0x090a0b0c, .reduction = {}};
  for (std::uint8_t version = kLaneVersionMin; version <= kLaneVersion; ++version) {
    header.version = version;
    EXPECT_EQ(Decode(Encoded(header)),
              version < kPoolMoveVersion ? DecodeError::kOperation : DecodeError::kNone);
  }
  MessageHeader decoded;
  ASSERT_EQ(DecodeHeader(Encoded(header), decoded), DecodeError::kNone);
  EXPECT_EQ(decoded, header);
  // Expect: it has no reduction, and a round that reduces has no root.
  header.pool.reduction = numeric::Reduction::kProduct;
  EXPECT_EQ(Decode(Encoded(header)), DecodeError::kReserved);
  header.operation = RoundOperation::kPool;
  EXPECT_EQ(Decode(Encoded(header)), DecodeError::kReserved);
  header.root = {};
  EXPECT_EQ(Decode(Encoded(header)), DecodeError::kNone);
}

}  // namespace
}  // namespace phub::wire
