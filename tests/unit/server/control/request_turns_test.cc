#include "server/control/rpc/request_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

namespace phub::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What has begun, with its tokens.
class Begun {
 public:
  std::function<void(RequestTurns::Token)> Work(const std::string& name) {
    return [this, name](RequestTurns::Token turn) {
      const std::lock_guard lock(mutex_);
      names_.push_back(name);
      turns_.push_back(std::move(turn));
      changed_.notify_one();
    };
  }
  std::vector<std::string> WaitFor(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return names_.size() >= count; });
    return names_;
  }
  void End(std::size_t number) {
    RequestTurns::Token ends;
    {
      const std::lock_guard lock(mutex_);
      ends.swap(turns_[number]);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> names_;
  std::vector<RequestTurns::Token> turns_;
};

TEST(RequestTurns, ATenantHasOneAtATimeAndAllHaveTwo) {
  Begun begun;
  RequestTurns turns(1 << 20);
  ASSERT_TRUE(turns.started().ok());
  for (int i = 0; i < 3; ++i) turns.Post("red", begun.Work("red" + std::to_string(i)));
  EXPECT_THAT(begun.WaitFor(1), ElementsAre("red0"));
  turns.Post("blue", begun.Work("blue0"));
  EXPECT_THAT(begun.WaitFor(2), ElementsAre("red0", "blue0"));
  turns.Post("green", begun.Work("green0"));
  // The next one after blue, although red has waited longer.
  begun.End(0);
  EXPECT_THAT(begun.WaitFor(3), ElementsAre("red0", "blue0", "green0"));
  begun.End(2);
  EXPECT_THAT(begun.WaitFor(4), ElementsAre("red0", "blue0", "green0", "red1"));
  begun.End(1);
  begun.End(3);
  EXPECT_EQ(begun.WaitFor(5).back(), "red2");
}

TEST(RequestTurns, WhatATenantIsChargedForIsLimitedByASetting) {
  RequestTurns turns(1000);
  auto first = turns.Charge("red", 600);
  ASSERT_TRUE(first.ok());
  const auto second = turns.Charge("red", 401);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("request_memory"));
  EXPECT_TRUE(turns.Charge("blue", 1000).ok());
  first = RequestTurns::Token();
  EXPECT_TRUE(turns.Charge("red", 1000).ok());
}

TEST(RequestTurns, TokensMayOutliveIt) {
  Begun begun;
  RequestTurns::Token charge;
  {
    RequestTurns turns(1000);
    charge = *turns.Charge("red", 1);
    turns.Post("red", begun.Work("red0"));
    begun.WaitFor(1);
    // Dropped: red's turn never ends.
    turns.Post("red", begun.Work("red1"));
  }
  EXPECT_THAT(begun.WaitFor(1), ElementsAre("red0"));
}

}  // namespace
}  // namespace phub::server
