// Keys of every element type, with separate wire types in each direction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "client/engine.h"
#include "tests/unit/client/engine_fixture.h"

namespace phub::client {
namespace {

using numeric::ElementType;
using ::testing::SizeIs;

// type, gradient type, parameter type
using Types = std::tuple<ElementType, ElementType, ElementType>;

class EngineTypesTest : public EngineTest, public ::testing::WithParamInterface<Types> {
 protected:
  static constexpr std::uint32_t kChunks = 3;
  static constexpr std::uint32_t kRest = 5;  // elements of the last chunk

  void SetUp() override {
    Start(1, 4);
    std::tie(type_, gradient_type_, parameter_type_) = GetParam();
    chunk_elements_ = kChunkBytes / numeric::ElementBytes(type_);
    count_ = (kChunks - 1) * chunk_elements_ + kRest;
    const std::vector<std::uint32_t> bins(kChunks, 0);
    const KeyPlacementView view{.name = "typed",
                                .key = KeyIndex{0},
                                .element_count = count_,
                                .element_bytes = numeric::ElementBytes(type_),
                                .chunk_bins = bins};
    auto layouts = layout_->AddKeys({&view, 1});
    ASSERT_TRUE(layouts.ok()) << layouts.status();
    batch_.keys.push_back({.layout = layouts->front(),
                           .type = type_,
                           .gradient_type = gradient_type_,
                           .parameter_type = parameter_type_,
                           .listener = &rounds_});
    Submit({.kind = Command::Kind::kAddKeys, .batch = &batch_});
    parameters_.assign(count_ * numeric::ElementBytes(parameter_type_) + 1, std::byte{0xee});
  }
  std::uint32_t ElementsOf(std::uint32_t chunk) const {
    return chunk + 1 < kChunks ? chunk_elements_ : kRest;
  }
  // Pushes a round whose payload has this type, and checks what is sent and received.
  void ExpectRound(wire::RoundOperation operation, ElementType payload_type,
                   std::uint64_t iteration) {
    const std::uint32_t payload_bytes = numeric::ElementBytes(payload_type);
    const std::uint32_t reply_bytes = numeric::ElementBytes(parameter_type_);
    std::vector<std::byte> gradients(count_ * payload_bytes, std::byte{0x11});
    Submit({.kind = Command::Kind::kPush,
            .operation = operation,
            .payload_type = payload_type,
            .ticket = iteration,
            .gradients = gradients.data(),
            .parameters = parameters_.data()});
    const auto posted = RunAndTake();
    ASSERT_THAT(posted, SizeIs(kChunks));
    for (std::uint32_t c = 0; c < kChunks; ++c) {
      EXPECT_EQ(posted[c].header.type, payload_type);
      EXPECT_EQ(posted[c].header.payload_bytes, ElementsOf(c) * payload_bytes);
      EXPECT_EQ(posted[c].payload, gradients.data() + c * chunk_elements_ * payload_bytes);
      wire::MessageHeader header = ReplyHeader(c, iteration);
      header.type = parameter_type_;
      header.payload_bytes = ElementsOf(c) * reply_bytes;
      const std::vector<std::byte> payload(header.payload_bytes, static_cast<std::byte>(c + 1));
      transport_.Deliver(0, header, payload);
    }
    Run();
    EXPECT_EQ(rounds_.complete_count, static_cast<int>(iteration));
    for (std::uint32_t c = 0; c < kChunks; ++c) {
      const std::size_t first = c * chunk_elements_ * reply_bytes;
      EXPECT_EQ(parameters_[first], static_cast<std::byte>(c + 1));
      EXPECT_EQ(parameters_[first + ElementsOf(c) * reply_bytes - 1],
                static_cast<std::byte>(c + 1));
    }
    EXPECT_EQ(parameters_.back(), std::byte{0xee});  // nothing is written beyond the end
  }

  ElementType type_{}, gradient_type_{}, parameter_type_{};
  std::uint32_t chunk_elements_ = 0;
  std::uint64_t count_ = 0;
  KeyBatch batch_;
  RecordingRounds rounds_;
  std::vector<std::byte> parameters_;
};

TEST_P(EngineTypesTest, OffsetsAndSizesAreOfTheTypeThatTravels) {
  ExpectRound(wire::RoundOperation::kReduce, gradient_type_, 1);
  ExpectRound(wire::RoundOperation::kAssign, type_, 2);
  ExpectRound(wire::RoundOperation::kAssign, parameter_type_, 3);
  ExpectRound(wire::RoundOperation::kReduce, gradient_type_, 4);
}

INSTANTIATE_TEST_SUITE_P(
    AllTypes, EngineTypesTest,
    ::testing::Values(Types{ElementType::kF32, ElementType::kF32, ElementType::kF32},
                      Types{ElementType::kF32, ElementType::kBf16, ElementType::kF32},
                      Types{ElementType::kF32, ElementType::kF32, ElementType::kF16},
                      Types{ElementType::kF32, ElementType::kBf16, ElementType::kBf16},
                      Types{ElementType::kF16, ElementType::kF16, ElementType::kF16},
                      Types{ElementType::kBf16, ElementType::kBf16, ElementType::kBf16},
                      Types{ElementType::kF64, ElementType::kF64, ElementType::kF64},
                      Types{ElementType::kI32, ElementType::kI32, ElementType::kI32},
                      Types{ElementType::kI64, ElementType::kI64, ElementType::kI64},
                      Types{ElementType::kU8, ElementType::kU8, ElementType::kU8}));

}  // namespace
}  // namespace phub::client
