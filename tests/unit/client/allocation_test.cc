// Rounds allocate nothing.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "client/engine.h"
#include "tests/support/allocation_counter.h"
#include "tests/unit/client/engine_fixture.h"

namespace phub::client {
namespace {

// A daemon that answers what was posted, without allocating.
class QuietTransport final : public transport::Transport {
 public:
  transport::ConnectionId Adopt(transport::Connection&,
                                std::span<const transport::LandingSlot> landing) override {
    landing_ = landing;
    return {.index = 0, .generation = 1};
  }
  void SetLanding(transport::ConnectionId,
                  std::span<const transport::LandingSlot> landing) override {
    landing_ = landing;
  }
  void Close(transport::ConnectionId) override {}
  std::size_t Post(std::span<const transport::SendRequest> requests) override {
    std::size_t taken = 0;
    for (const auto& request : requests) {
      if (waiting_ == messages_.size()) break;
      ++taken;
      if (request.header.kind != wire::MessageKind::kGradient) continue;
      wire::MessageHeader header = request.header;
      header.kind = wire::MessageKind::kParameters;
      header.slot = SlotIndex{header.chunk.value};
      std::memcpy(landing_[header.slot.value].data, request.payload.data(), request.payload.size());
      messages_[waiting_++].header = header;
    }
    return taken;
  }
  std::size_t Poll(std::span<transport::Completion> completions) override {
    std::size_t count = 0;
    for (; count < completions.size() && count < waiting_; ++count) {
      completions[count] = {};
      completions[count].connection = {.index = 0, .generation = 1};
      completions[count].message = &messages_[count];
    }
    PHUB_CHECK(count == waiting_);
    waiting_ = 0;
    return count;
  }
  void Release(std::span<const transport::Completion>) override {}
  bool Arm() override { return waiting_ == 0; }
  int descriptor() const override { return -1; }
  void Tick(TimeNs) override {}

 private:
  std::span<const transport::LandingSlot> landing_;
  std::array<transport::ReceivedMessage, 16> messages_{};
  std::size_t waiting_ = 0;
};

class AllocationTest : public EngineTest {
 protected:
  void SetUp() override {
    transports_ = {&quiet_};
    Start(1, 4);
  }
  QuietTransport quiet_;
};

TEST_F(AllocationTest, RoundsOfTheEngineAllocateNothing) {
  TestKey* keys[] = {&AddKey({0, 0, 0, 0, 0, 0}), &AddKey({0}), &AddKey({0, 0}, 3)};
  float learning_rate = 0.0f;
  const auto round = [&] {
    learning_rate += 1.0f;
    for (TestKey* key : keys) {
      SetHyperParameters(*key, {.learning_rate = learning_rate});
      Push(*key);
    }
    Run();
  };
  round();
  const std::size_t before = testing::AllocationCount();
  for (int i = 0; i < 100; ++i) round();
  const std::size_t after = testing::AllocationCount();
  EXPECT_GT(before, 0u);  // the count counts
  EXPECT_EQ(after - before, 0u);
  for (TestKey* key : keys) {
    EXPECT_EQ(key->rounds.complete_count, 101);
    EXPECT_EQ(key->parameters, key->gradients);
  }
}

}  // namespace
}  // namespace phub::client
