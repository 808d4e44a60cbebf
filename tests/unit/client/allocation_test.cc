// Rounds do not allocate memory.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "client/engine.h"
#include "tests/support/allocation_counter.h"
#include "tests/unit/client/engine_fixture.h"

namespace phub::client {
namespace {

// A daemon that answers posted messages without allocating. It may share memory with the engine.
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
  SharedAddress AddressOf(transport::ConnectionId, const std::byte* data,
                          std::size_t bytes) const override {
    const bool inside = data >= region_.data() && data + bytes <= region_.data() + region_.size();
    if (!inside) return {};
    return {1 + static_cast<std::uint64_t>(data - region_.data())};
  }
  std::byte* Resolve(transport::ConnectionId, SharedAddress address, std::size_t) const override {
    return region_.data() + (address.value - 1);
  }
  std::byte* PeerSlot(transport::ConnectionId, SlotIndex slot) const override {
    return slots_.empty() ? nullptr : slots_.data() + slot.value * slot_bytes_;
  }
  void Share(std::span<std::byte> region) { region_ = region; }
  void ShareSlots(std::span<std::byte> slots, std::size_t slot_bytes) {
    slots_ = slots;
    slot_bytes_ = slot_bytes;
  }

  bool Arm() override { return waiting_ == 0; }
  int descriptor() const override { return -1; }
  void Tick(TimeNs) override {}

 private:
  std::span<const transport::LandingSlot> landing_;
  std::span<std::byte> region_;
  std::span<std::byte> slots_;
  std::size_t slot_bytes_ = 0;
  std::array<transport::ReceivedMessage, 16> messages_{};
  std::size_t waiting_ = 0;
};

class AllocationTest : public EngineTest {
 protected:
  void SetUp() override { transports_ = {&quiet_}; }
  void AddKeys() {
    keys_of_test_ = {&AddKey({0, 0, 0, 0, 0, 0}), &AddKey({0}), &AddKey({0, 0}, 3)};
  }
  // Runs `round` many times; each run pushes every key once.
  template <typename Round>
  void ExpectNoAllocations(Round round) {
    round();
    const std::size_t before = testing::AllocationCount();
    for (int i = 0; i < 100; ++i) round();
    const std::size_t after = testing::AllocationCount();
    EXPECT_GT(before, 0u);  // the counter works
    EXPECT_EQ(after - before, 0u);
    for (TestKey* key : keys_of_test_) {
      EXPECT_EQ(key->rounds.complete_count, 101);
      EXPECT_EQ(key->parameters, key->gradients);
    }
  }
  void PushAll() {
    learning_rate_ += 1.0;
    for (TestKey* key : keys_of_test_) {
      SetHyperParameters(*key, {.learning_rate = learning_rate_});
      Push(*key);
    }
    Run();
  }
  QuietTransport quiet_;
  std::vector<TestKey*> keys_of_test_;
  double learning_rate_ = 0.0;
};

TEST_F(AllocationTest, RoundsOfTheEngineAllocateNothing) {
  Start(1, 4);
  AddKeys();
  ExpectNoAllocations([this] { PushAll(); });
  EXPECT_EQ(engine_->counters().gradients_in_place, 0u);
  EXPECT_EQ(engine_->counters().gradients_copied, 0u);
}

TEST_F(AllocationTest, RoundsOverSharedMemoryAllocateNothing) {
  Start(1, 4);
  AddKeys();
  std::vector<std::byte> slots(4 * kChunkBytes);
  quiet_.ShareSlots(slots, kChunkBytes);
  quiet_.Share(std::as_writable_bytes(std::span(keys_of_test_[0]->gradients)));
  ExpectNoAllocations([this] { PushAll(); });
  EXPECT_EQ(engine_->counters().gradients_in_place, 101u * 6);
  EXPECT_EQ(engine_->counters().gradients_copied, 101u * 3);
}

TEST_F(AllocationTest, PushesThatAreHeldAllocateNothing) {
  Start(1, 4, /*restart=*/true);
  AddKeys();
  Push(*keys_of_test_[0]);
  Run();
  ExpectNoAllocations([this] {
    // The first key is always one iteration ahead: its push waits for the other two.
    const bool last = keys_of_test_[0]->ticket == 101;
    if (!last) Push(*keys_of_test_[0]);
    Push(*keys_of_test_[1]);
    Push(*keys_of_test_[2]);
    Run();
  });
  EXPECT_EQ(engine_->counters().pushes_held, 100u);
}

}  // namespace
}  // namespace phub::client
