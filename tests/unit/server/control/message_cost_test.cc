#include "server/control/rpc/message_cost.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <gtest/gtest.h>

#include <string>

#include "phub/v1/session.pb.h"

namespace phub::server {
namespace {

constexpr std::size_t kNoLimit = std::size_t{1} << 40;

std::optional<std::size_t> CostOf(const google::protobuf::Message& type, const std::string& bytes,
                                  std::size_t limit = kNoLimit) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()), 7);
  return ParsedBytes(type, stream, limit);
}

template <typename Message>
void ExpectBound(const std::string& bytes) {
  Message parsed;
  ASSERT_TRUE(parsed.ParseFromString(bytes));
  const auto cost = CostOf(parsed, bytes);
  ASSERT_TRUE(cost.has_value());
  const std::size_t used = parsed.SpaceUsedLong() - sizeof parsed;
  EXPECT_GE(*cost, used);
  EXPECT_LE(*cost, 4 * used + 1024);
}

v1::AddKeysRequest Keys(int count) {
  v1::AddKeysRequest request;
  request.set_session_id("0123456789abcdef");
  for (int i = 0; i < count; ++i) {
    v1::KeySpec& key = *request.add_keys();
    key.set_name("model.layers." + std::to_string(i) + ".self_attention.weight");
    key.set_element_count(4096);
    key.set_optimizer(v1::OPTIMIZER_SGD);
    key.mutable_hyper_parameters()->set_learning_rate(0.1);
  }
  return request;
}

TEST(ParsedBytes, IsABoundOfWhatMessagesNeed) {
  ExpectBound<v1::AddKeysRequest>(Keys(1000).SerializeAsString());
  v1::KeySpec bundle;
  for (std::uint64_t i = 0; i < 5000; ++i) bundle.add_tensors(i);
  ExpectBound<v1::KeySpec>(bundle.SerializeAsString());
  v1::GetVersionsResponse strings;
  for (int i = 0; i < 500; ++i) strings.add_racks(std::string(static_cast<std::size_t>(i), 'x'));
  ExpectBound<v1::GetVersionsResponse>(strings.SerializeAsString());
  // The same bytes as fields that the type does not know.
  std::string unknown;
  for (int i = 0; i < 1000; ++i) unknown += std::string("\xf8\x07\x01", 3);  // field 127
  ExpectBound<v1::Heartbeat>(unknown);
}

TEST(ParsedBytes, OfManyEmptyMessagesIsAHundredTimesTheirSize) {
  std::string bytes;
  for (int i = 0; i < 10'000; ++i) bytes += std::string("\x1a\0", 2);  // keys
  ExpectBound<v1::AddKeysRequest>(bytes);
  EXPECT_GT(*CostOf(v1::AddKeysRequest(), bytes), 50 * bytes.size());
  // Expect: above the limit nothing more is read.
  EXPECT_GT(*CostOf(v1::AddKeysRequest(), bytes + "\xff", 1000), 1000u);
}

TEST(ParsedBytes, SixtyThousandKeysFitIntoARequest) {
  EXPECT_LT(*CostOf(v1::AddKeysRequest(), Keys(60'000).SerializeAsString()), 40u << 20);
}

TEST(ParsedBytes, OfOtherBytesIsNothing) {
  const std::string whole = Keys(3).SerializeAsString();
  for (std::size_t size = whole.size() - 20; size < whole.size(); ++size) {
    EXPECT_FALSE(CostOf(v1::AddKeysRequest(), whole.substr(0, size)).has_value()) << size;
  }
  for (const std::string& bytes : {std::string("\0", 1), std::string("\x0b\x0c", 2),
                                   std::string("\x0c", 1), std::string("\x1a\xff\xff\xff\xff\x7f")})
    EXPECT_FALSE(CostOf(v1::AddKeysRequest(), bytes).has_value());
}

}  // namespace
}  // namespace phub::server
