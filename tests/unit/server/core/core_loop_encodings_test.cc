// Keys whose gradients are encoded: rounds have the bits of a serial sum of what the ranks'
// payloads decode to, in any order of arrival; malformed payloads are refused; NaN is found with
// its rank.
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/encoding_reference.h"
#include "tests/unit/server/core/core_loop_fixture.h"

namespace phub::server {
namespace {

using numeric::Encoding;
using numeric::GradientEncoding;
using Floats = std::vector<float>;
using Payload = std::vector<std::byte>;

class EncodingsTest : public CoreLoopTest {
 protected:
  void StartWith(const GradientEncoding& encoding, std::uint32_t ranks, std::uint32_t slots,
                 Optimizer optimizer = Optimizer::kNone) {
    key_.encoding = encoding;
    Start(ranks, slots, optimizer);
  }
  Payload PayloadOf(std::uint32_t rank, std::uint32_t chunk, std::uint64_t iteration) const {
    Floats values(kElements);
    for (std::uint32_t i = 0; i < kElements; ++i) {
      values[i] = std::sin(static_cast<float>(i * 7 + rank * 31 + chunk)) /
                  static_cast<float>(iteration + i % 5);
    }
    return simd::reference::Encoded(key_.encoding, values, nullptr, 99 * iteration + chunk);
  }
  void PushPayload(std::uint32_t rank, std::uint32_t chunk, std::uint32_t slot,
                   const Payload& payload, std::uint64_t iteration = 1) {
    Floats bits(payload.size() / sizeof(float));
    ASSERT_EQ(bits.size() * sizeof(float), payload.size()) << "choose another share";
    std::memcpy(bits.data(), payload.data(), payload.size());
    transport_.Deliver(lanes_[rank], Gradient(chunk, iteration, slot), bits);
    loop_.RunOnce();
  }
  Floats Expected(std::uint32_t chunk, std::uint64_t iteration) const {
    std::vector<Payload> payloads;
    std::vector<const std::byte*> places;
    for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
      payloads.push_back(PayloadOf(rank, chunk, iteration));
    }
    for (const Payload& payload : payloads) places.push_back(payload.data());
    return simd::reference::SumOfEncoded(key_.encoding, places, kElements);
  }
};

constexpr GradientEncoding kInt8{Encoding::kInt8, 0};
constexpr GradientEncoding kTopK{Encoding::kTopK, 125'000};  // 8 of 64
constexpr GradientEncoding kRandomK{Encoding::kRandomK, 125'000};

struct EachEncoding : EncodingsTest, ::testing::WithParamInterface<GradientEncoding> {};
INSTANTIATE_TEST_SUITE_P(All, EachEncoding, ::testing::Values(kInt8, kTopK, kRandomK),
                         [](const auto& each) { return numeric::ToString(each.param.kind); });

TEST_P(EachEncoding, HasTheSameBitsInAnyOrderOfArrival) {
  StartWith(GetParam(), 3, 4);
  for (const auto& order : {std::array{0u, 1u, 2u}, {2u, 1u, 0u}, {1u, 2u, 0u}}) {
    const std::uint64_t iteration = shard_->chunks()[0]->applied.value + 1;
    for (const std::uint32_t rank : order) {
      PushPayload(rank, 0, 0, PayloadOf(rank, 0, iteration), iteration);
    }
    const auto replies = Replies();
    ASSERT_EQ(replies.size(), 3u);
    EXPECT_EQ(replies[0].payload, Expected(0, iteration));
  }
}

TEST_P(EachEncoding, OfGradientsThatHadToLeaveTheirSlots) {
  StartWith(GetParam(), 3, 1);
  // With one slot each, the ranks push chunks in different orders.
  PushPayload(0, 0, 0, PayloadOf(0, 0, 1));
  PushPayload(0, 1, 0, PayloadOf(0, 1, 1));
  PushPayload(1, 1, 0, PayloadOf(1, 1, 1));
  PushPayload(1, 0, 0, PayloadOf(1, 0, 1));
  EXPECT_GT(Count(CoreCounter::gradients_folded), 0u);
  PushPayload(2, 0, 0, PayloadOf(2, 0, 1));
  const auto first = Replies();
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0].payload, Expected(0, 1));
  PushPayload(2, 1, 0, PayloadOf(2, 1, 1));
  const auto second = Replies();
  ASSERT_EQ(second.size(), 3u);
  EXPECT_EQ(second[0].payload, Expected(1, 1));
}

TEST_P(EachEncoding, InitialValuesAreNotEncoded) {
  StartWith(GetParam(), 2, 4, Optimizer::kSgd);
  for (const std::uint32_t rank : {0u, 1u}) {
    wire::MessageHeader header = Gradient(0, 1, 0);
    header.operation = wire::RoundOperation::kAssign;
    transport_.Deliver(lanes_[rank], header, rank == 0 ? Filled(3.0f) : Floats());
    loop_.RunOnce();
  }
  const auto replies = Replies();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].payload, Filled(3.0f));
}

TEST_P(EachEncoding, APayloadOfTheWrongSizeIsRefused) {
  StartWith(GetParam(), 2, 2);
  for (const std::size_t floats : {0u, 1u, 64u}) {
    transport_.Deliver(lanes_[1], Gradient(0, 1, 1), Floats(floats, 0.0f));
    EXPECT_EQ(FaultOf(), FaultCode::kPayloadSize) << floats;
    shard_->faulted = false;
    Attach(1);
  }
}

TEST_P(EachEncoding, NanIsReportedWithItsRank) {
  StartWith(GetParam(), 3, 4);
  Floats values = Filled(1.0f);
  values[40] = std::numeric_limits<float>::infinity();
  PushPayload(0, 2, 0, PayloadOf(0, 2, 1));
  PushPayload(1, 2, 0, PayloadOf(1, 2, 1));
  PushPayload(2, 2, 0, simd::reference::Encoded(key_.encoding, values, nullptr, 5));
  EXPECT_EQ(Replies().size(), 3u);
  const Event event = Next(Event::Kind::kNonFinite);
  EXPECT_EQ(event.kind, Event::Kind::kNonFinite);
  EXPECT_EQ(event.source, Rank{2});
}

TEST_F(EncodingsTest, ScalesThatNoEncoderMakesAreRefused) {
  StartWith(kInt8, 2, 2);
  const std::uint64_t before = Count(CoreCounter::refused_encoding);
  std::uint64_t refused = 0;
  for (const float scale : {-1.0f, std::numeric_limits<float>::infinity()}) {
    Payload payload = PayloadOf(1, 0, 1);
    std::memcpy(payload.data(), &scale, sizeof(scale));
    PushPayload(1, 0, 1, payload);
    EXPECT_EQ(FaultOf(), FaultCode::kEncoding) << scale;
    EXPECT_EQ(Count(CoreCounter::refused_encoding), before + ++refused);
    shard_->faulted = false;
    Attach(1);
  }
  EXPECT_EQ(shard_->lanes[0].state, Lane::State::kOpen) << "rank 0 is not disturbed";
}

TEST_F(EncodingsTest, IndicesThatDoNotAscendOrAreTooLargeAreRefused) {
  StartWith(kTopK, 2, 2);
  for (const std::uint16_t last : std::initializer_list<std::uint16_t>{64, 0, 65'535}) {
    Payload payload = PayloadOf(1, 0, 1);
    std::memcpy(payload.data() + payload.size() - sizeof(last), &last, sizeof(last));
    PushPayload(1, 0, 1, payload);
    EXPECT_EQ(FaultOf(), FaultCode::kEncoding) << last;
    shard_->faulted = false;
    Attach(1);
  }
}

}  // namespace
}  // namespace phub::server
