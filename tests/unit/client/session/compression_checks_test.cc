// KeyOptions::compression: what libphub refuses before it asks a daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "client/session/key_checks.h"

namespace phub::client {
namespace {

constexpr std::uint64_t kKeyBytesMax = 1u << 20;

KeySpec SpecOf(ElementType type, Optimizer optimizer = None{}, KeyOptions options = {}) {
  return {
      .name = "k", .type = type, .element_count = 10, .optimizer = optimizer, .options = options};
}
void ExpectCompressionRefused(const KeySpec& spec, const std::string& says) {
  const auto key = CheckKey(spec, kKeyBytesMax);
  ASSERT_FALSE(key.ok()) << says;
  EXPECT_EQ(key.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(key.status().message()), ::testing::HasSubstr("key k"));
  EXPECT_THAT(std::string(key.status().message()), ::testing::HasSubstr(says));
}

TEST(CheckCompression, CompressionFitsItsKeyOrIsRefused) {
  const auto with = [](Compression compression, KeyOptions options = {}) {
    options.compression = compression;
    return SpecOf(f32, None{}, options);
  };
  const auto int8 = CheckKey(with(Compression::Int8()), kKeyBytesMax, {.chunk_bytes = 256});
  ASSERT_TRUE(int8.ok());
  EXPECT_FALSE(int8->error_feedback);
  EXPECT_EQ(int8->encoded_bytes(), 14u);
  EXPECT_EQ(ToProto(*int8).encoding(), v1::ENCODING_INT8);
  const auto topk = CheckKey(with(Compression::TopK(0.25)), kKeyBytesMax);
  ASSERT_TRUE(topk.ok());
  EXPECT_TRUE(topk->error_feedback);
  EXPECT_EQ(ToProto(*topk).kept_millionths(), 250'000u);
  EXPECT_EQ(topk->encoded_bytes(), 18u);  // 3 of 10 elements
  for (const double kept : {0.0, -0.1, 0.51, 1.5, 1e-7, std::nan("")}) {
    ExpectCompressionRefused(with(Compression::TopK(kept)), "compression topk needs a share from");
  }
  ExpectCompressionRefused(with({.kind = Compression::Kind::kInt8, .kept = 0.1}),
                           "has no such share");
  ExpectCompressionRefused(with({.error_feedback = true}), "error_feedback needs a compression");
  ExpectCompressionRefused(with({.kind = static_cast<Compression::Kind>(4)}), "4 is not a kind");
  ExpectCompressionRefused(with(Compression::Int8(), {.gradient_type = bf16}), "needs type f32");
  ExpectCompressionRefused(with(Compression::Int8(), {.operation = Operation::kMax}),
                           "needs operation");
  ExpectCompressionRefused(with(Compression::Int8(), {.movement = Movement::kReduceScatter}),
                           "all_reduce");
  KeySpec wide = SpecOf(f64);
  wide.options.compression = Compression::RandomK(0.1);
  ExpectCompressionRefused(wide, "compression randomk needs type f32");
}

TEST(CheckCompression, CompressionDoesNotWorkInSomeJobs) {
  KeySpec spec = SpecOf(f32);
  for (const Compression& compression :
       {Compression::TopK(0.1), Compression::RandomK(0.1), Compression::Int8(true)}) {
    spec.options.compression = compression;
    const auto restarts = CheckKey(spec, kKeyBytesMax, {.restart = true});
    ASSERT_FALSE(restarts.ok());
    EXPECT_THAT(std::string(restarts.status().message()), ::testing::HasSubstr("restart=true"));
    const auto fixed = CheckKey(spec, kKeyBytesMax, {.sums_fixed = true});
    ASSERT_FALSE(fixed.ok());
    EXPECT_THAT(std::string(fixed.status().message()), ::testing::HasSubstr("sum=kFixed"));
  }
  spec.options.compression = Compression::Int8();
  EXPECT_TRUE(CheckKey(spec, kKeyBytesMax, {.restart = true}).ok());
}

}  // namespace
}  // namespace phub::client
