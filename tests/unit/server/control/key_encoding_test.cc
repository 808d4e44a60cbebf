// Keys whose gradients are encoded: what control refuses, and what core loops get.
#include "tests/unit/server/control/key_refusal_fixture.h"

namespace phub::server {
namespace {

class KeyEncodingTest : public KeyRefusalTest {
 protected:
  static v1::KeySpec MeanKey() {
    v1::KeySpec key;
    key.set_name("fc1");
    key.set_element_count(100);
    key.set_type(v1::ELEMENT_TYPE_F32);
    key.set_operation(v1::OPERATION_MEAN);
    return key;
  }
};

TEST_F(KeyEncodingTest, CompressionFitsItsKeyOrIsRefused) {
  const auto with = [](v1::Encoding encoding, std::uint32_t kept) {
    v1::KeySpec key = MeanKey();
    key.set_encoding(encoding);
    key.set_kept_millionths(kept);
    return key;
  };
  EXPECT_EQ(Refusal(with(v1::ENCODING_INT8, 0)), "");
  for (const v1::Encoding sparse : {v1::ENCODING_TOPK, v1::ENCODING_RANDOMK}) {
    EXPECT_EQ(Refusal(with(sparse, 1)), "");
    EXPECT_EQ(Refusal(with(sparse, 500'000)), "");
    EXPECT_THAT(Refusal(with(sparse, 0)), ::testing::HasSubstr("allows 1 to 500000"));
    EXPECT_THAT(Refusal(with(sparse, 500'001)), ::testing::HasSubstr("allows 1 to 500000"));
  }
  EXPECT_THAT(Refusal(with(v1::ENCODING_INT8, 5)), ::testing::HasSubstr("has no such share"));
  EXPECT_THAT(Refusal(with(v1::ENCODING_NONE, 5)), ::testing::HasSubstr("has no such share"));
  EXPECT_THAT(Refusal(with(static_cast<v1::Encoding>(4), 0)),
              ::testing::HasSubstr("unknown compression number 4"));
  v1::KeySpec other = with(v1::ENCODING_INT8, 0);
  other.set_gradient_type(v1::ELEMENT_TYPE_BF16);
  EXPECT_THAT(Refusal(other), ::testing::HasSubstr("needs type f32"));
  other = with(v1::ENCODING_INT8, 0);
  other.set_operation(v1::OPERATION_MAX);
  EXPECT_THAT(Refusal(other), ::testing::HasSubstr("needs operation sum or mean"));
  other = with(v1::ENCODING_INT8, 0);
  other.set_operation(v1::OPERATION_SUM);
  other.set_movement(v1::MOVEMENT_REDUCE_SCATTER);
  EXPECT_THAT(Refusal(other), ::testing::HasSubstr("needs movement all_reduce"));
  sums_fixed_ = true;
  EXPECT_THAT(Refusal(with(v1::ENCODING_INT8, 0)), ::testing::HasSubstr("sum=fixed"));
}

TEST_F(KeyEncodingTest, CoreLoopsGetTheEncoding) {
  v1::KeySpec key = MeanKey();
  key.set_encoding(v1::ENCODING_TOPK);
  key.set_kept_millionths(20'000);
  AddKeys(Batch(EnterAs(JoinOf(0, 1)), 0, {key}));
  Settle();
  EXPECT_EQ(LastBatch().keys[0].encoding,
            (numeric::GradientEncoding{numeric::Encoding::kTopK, 20'000}));
}

}  // namespace
}  // namespace phub::server
