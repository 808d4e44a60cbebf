// When a sleeping peer is woken: not before the awaited messages are there, and not too late.
#include <poll.h>

#include "common/transport/shm/shm_transport.h"
#include "tests/unit/transport/shm/shm_fixture.h"

namespace phub::transport {
namespace {

class ShmBellTest : public ShmPairTest {
 protected:
  void SetUp() override {
    ShmPairTest::SetUp();
    EXPECT_EQ(Take(), 0u);  // both ends get an event for the new lane
    EXPECT_EQ(daemon.Poll(told), 0u);
  }
  void Tell(std::size_t messages) {
    for (std::size_t i = 0; i < messages; ++i) {
      const SendRequest request{.header = Header(wire::MessageKind::kCredit, SlotIndex{0}, 0),
                                .payload = {},
                                .connections = {&daemon_id, 1}};
      ASSERT_EQ(daemon.Post({&request, 1}), 1u);
    }
    ASSERT_EQ(daemon.Poll(told), 0u);
  }
  // Receives everything that has arrived.
  std::size_t Take() {
    std::size_t taken = 0;
    while (const std::size_t count = worker.Poll(told)) {
      worker.Release({told.data(), count});
      taken += count;
    }
    return taken;
  }
  void SleepAwaiting(std::uint32_t messages) {
    worker.Await(worker_id, messages);
    ASSERT_TRUE(worker.Arm());
    ASSERT_FALSE(Rung());
  }
  bool Rung() const {
    pollfd item{.fd = worker.descriptor(), .events = POLLIN, .revents = 0};
    return poll(&item, 1, 0) == 1;
  }

  std::array<Completion, 16> told;
};

TEST_F(ShmBellTest, WhoAwaitsNothingInParticularIsRungAtOnce) {
  ASSERT_TRUE(worker.Arm());
  Tell(1);
  EXPECT_TRUE(Rung());
}

TEST_F(ShmBellTest, IsRungWhenWhatItAwaitsIsThere) {
  SleepAwaiting(3);
  Tell(1);
  Tell(1);
  EXPECT_FALSE(Rung());
  Tell(1);
  EXPECT_TRUE(Rung());
  EXPECT_EQ(Take(), 3u);
  // Awaited messages are counted from the last received one.
  SleepAwaiting(2);
  Tell(1);
  EXPECT_FALSE(Rung());
  Tell(1);
  EXPECT_TRUE(Rung());
}

TEST_F(ShmBellTest, IsRungForLessWhenTheOtherEndHasNothingToDo) {
  SleepAwaiting(5);
  Tell(2);
  EXPECT_FALSE(Rung());
  daemon.OnIdle();
  EXPECT_TRUE(Rung());
  EXPECT_EQ(Take(), 2u);
  SleepAwaiting(5);
  Tell(1);
  [[maybe_unused]] const bool sleeps = daemon.Arm();  // goes to sleep too
  EXPECT_TRUE(Rung());
}

TEST_F(ShmBellTest, IsRungForLessAfterAWhile) {
  daemon.Tick(kSecond);
  SleepAwaiting(5);
  Tell(1);
  daemon.Tick(kSecond + kMillisecond);
  EXPECT_FALSE(Rung());
  daemon.Tick(kSecond + 10 * kMillisecond);
  EXPECT_TRUE(Rung());
}

TEST_F(ShmBellTest, IsNotRungForWhatItHasTakenMeanwhile) {
  SleepAwaiting(5);
  Tell(1);
  EXPECT_EQ(Take(), 1u) << "something else woke it";
  SleepAwaiting(5);
  daemon.OnIdle();
  EXPECT_FALSE(Rung());
  Tell(1);
  daemon.OnIdle();
  EXPECT_TRUE(Rung());
}

// The ring is full before all awaited messages fit.
TEST_F(ShmBellTest, IsRungWhenThereIsNoRoomForMore) {
  SleepAwaiting(100);
  Tell(8);
  EXPECT_FALSE(Rung());
  Tell(1);
  EXPECT_TRUE(Rung());
}

// The bytes of a message follow its record, which has been read already and does not come again.
TEST_F(ShmBellTest, IsRungForTheRestOfAMessage) {
  const std::vector<std::byte> payload(3000, std::byte{5});
  const SendRequest request{
      .header = Header(wire::MessageKind::kParameters, SlotIndex{0}, payload.size()),
      .payload = payload,
      .connections = {&daemon_id, 1}};
  ASSERT_EQ(daemon.Post({&request, 1}), 1u);
  ASSERT_EQ(daemon.Post({&request, 1}), 1u);  // there is room for a third of it
  ASSERT_EQ(daemon.Poll(told), 0u);
  EXPECT_EQ(Take(), 1u);
  SleepAwaiting(1);
  ASSERT_EQ(daemon.Poll(told), 0u);
  EXPECT_TRUE(Rung());
  EXPECT_EQ(Take(), 1u);
}

TEST_F(ShmBellTest, ALaneThatEndsIsNotRungLater) {
  SleepAwaiting(5);
  Tell(1);
  daemon.Close(daemon_id);
  Completion closed;
  ASSERT_TRUE(PollFor(daemon, CompletionKind::kClosed, closed));
  daemon_connection.reset();
  daemon.OnIdle();
  EXPECT_TRUE(Rung()) << "it hears of the end";
  Completion ended;
  ASSERT_TRUE(PollFor(worker, CompletionKind::kReceived, ended)) << "after what was said";
  worker.Release({&ended, 1});
  ASSERT_TRUE(PollFor(worker, CompletionKind::kClosed, ended));
}

}  // namespace
}  // namespace phub::transport
