// Keys that do not fit into one message to a daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "phub/client.h"
#include "tests/unit/client/session/fake_rack.h"

namespace phub::client {
namespace {

constexpr std::size_t kRequestBytesMax = 4 << 20;  // as in the daemon

class LargeBatchTest : public ::testing::Test {
 protected:
  LargeBatchTest() : rack_({1}, FakeDaemonOptions{.core_count = 1}) {
    auto job = rack_.Join({.job = "digits"});
    job_.emplace(*std::move(job));
  }
  static std::vector<KeySpec> Specs(int count, std::size_t name_bytes) {
    std::vector<KeySpec> specs;
    for (int i = 0; i < count; ++i) {
      std::string name = std::to_string(i);
      name.insert(0, name_bytes - name.size(), 'x');
      specs.push_back({.name = name, .element_count = 1, .optimizer = None{}});
    }
    return specs;
  }

  FakeRack rack_;
  std::optional<Job> job_;
};

// The ranks of a job must add the same batches, and some may have an older version.
TEST_F(LargeBatchTest, ABatchThatFitsIsSentWhole) {
  ASSERT_TRUE(job_->AddKeys(Specs(10000, 200)).ok());
  ASSERT_TRUE(job_->AddKeys(Specs(10, 100)).ok());
  const auto requests = rack_[0].add_keys_requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].keys_size(), 10000);
  EXPECT_EQ(requests[1].batch(), 1u);
}

TEST_F(LargeBatchTest, OtherwiseItIsSentInParts) {
  const std::vector<KeySpec> specs = Specs(20000, 230);
  const auto keys = job_->AddKeys(specs);
  ASSERT_TRUE(keys.ok()) << ToString(keys.status());
  ASSERT_EQ(keys->size(), specs.size());
  const auto requests = rack_[0].add_keys_requests();
  ASSERT_GT(requests.size(), 1u);
  std::size_t next = 0;
  for (std::size_t batch = 0; batch < requests.size(); ++batch) {
    EXPECT_EQ(requests[batch].batch(), batch);
    EXPECT_LE(requests[batch].ByteSizeLong(), kRequestBytesMax / 2);
    for (const v1::KeySpec& key : requests[batch].keys()) {
      ASSERT_LT(next, specs.size());
      ASSERT_EQ(key.name(), specs[next].name);
      ASSERT_EQ((*keys)[next].name(), specs[next].name);
      ++next;
    }
  }
  EXPECT_EQ(next, specs.size());
}

}  // namespace
}  // namespace phub::client
