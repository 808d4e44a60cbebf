// Adds one key to a job of its own and shows why control refuses it.
#pragma once

#include <string>

#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {

class KeyRefusalTest : public ControlTest {
 protected:
  KeyRefusalTest() : ControlTest(1) {}

  // The key is named fc1. Empty: it was accepted.
  std::string Refusal(const v1::KeySpec& key) {
    v1::JoinRequest join = JoinOf(0, 1, "job-" + std::to_string(++jobs_));
    if (sums_fixed_) join.mutable_options()->set_sum(v1::SUM_FIXED);
    const std::string session = EnterAs(join);
    const auto call = AddKeys(Batch(session, 0, {key}));
    Settle();
    EXPECT_TRUE(call->ok() || call->code() == absl::StatusCode::kInvalidArgument);
    const std::string message = call->ok() ? "" : call->message();
    Leave(session);
    Settle();
    if (!message.empty()) {
      EXPECT_THAT(message, ::testing::HasSubstr("key fc1"));
    }
    return message;
  }
  // Valid while its job runs.
  const KeyBatch& LastBatch() { return *cores[0]->Executed(Command::Kind::kAddKeys).back().batch; }

  bool sums_fixed_ = false;

 private:
  int jobs_ = 0;
};

}  // namespace phub::server
