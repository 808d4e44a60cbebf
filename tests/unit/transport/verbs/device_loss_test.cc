// A device that disappears while lanes use it: the lanes end with an error that names it. The
// process continues, and so does its other work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/transport/verbs/verbs_transport.h"
#include "tests/verbs/fake_verbs.h"

namespace phub::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DeviceLoss : public ::testing::Test {
 protected:
  DeviceLoss() {
    fake_verbs::Reset();
    device_ = VerbsDevice::Open({}).value();
    queue_ = VerbsQueue::Create(device_, 1 << 16).value();
    domain_ = VerbsDomain::Create(device_).value();
    transport_ = std::make_unique<VerbsTransport>(std::vector{queue_});
  }
  ~DeviceLoss() override {
    transport_.reset();
    lanes_.clear();
  }

  // A lane of the daemon, with a peer that sends nothing.
  ConnectionId OpenLane() {
    SystemRandom random;
    const VerbsStaging staging{.data = slots_.data(), .slot_count = 1, .slot_bytes = 64};
    lanes_.push_back(
        VerbsConnection::Create(VerbsEnd::kDaemon, queue_, domain_, staging, {}, random).value());
    wire::VerbsOffer peer = lanes_.back()->Offer();
    peer.inbox_key = 1;
    EXPECT_TRUE(lanes_.back()->Connect(peer).ok());
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    lanes_.back()->SetSocket(Descriptor(ends[0]), "10.0.0.2:5000");
    peers_.emplace_back(ends[1]);
    return transport_->Adopt(*lanes_.back(), {});
  }

  // Polls while time advances, until a lane is closed; one at a time.
  std::optional<Completion> PollUntilClosed() {
    std::array<Completion, 1> completions;
    for (int i = 0; i < 1000; ++i) {
      transport_->Tick(now_ += 10 * kMillisecond);
      if (transport_->Poll(completions) > 0) return completions[0];
    }
    return std::nullopt;
  }
  void ExpectLost(std::size_t lane) {
    const std::optional<Completion> closed = PollUntilClosed();
    ASSERT_TRUE(closed);
    EXPECT_EQ(closed->kind, CompletionKind::kClosed);
    EXPECT_EQ(closed->error, TransportError::kReset);
    EXPECT_THAT(lanes_[lane]->Trouble(),
                AllOf(HasSubstr("RDMA device fake0 port 1"), HasSubstr("peer 10.0.0.2:5000"),
                      HasSubstr("the device is lost")));
  }

  alignas(64) std::array<std::byte, wire::kSlotHeaderBytes + 64> slots_{};
  std::shared_ptr<const VerbsDevice> device_;
  std::shared_ptr<VerbsQueue> queue_;
  std::shared_ptr<VerbsDomain> domain_;
  std::unique_ptr<VerbsTransport> transport_;
  std::vector<std::unique_ptr<VerbsConnection>> lanes_;
  std::vector<Descriptor> peers_;
  TimeNs now_ = kSecond;
};

TEST_F(DeviceLoss, EndsLanesWhenTheDeviceIsTakenAway) {
  OpenLane();
  OpenLane();
  EXPECT_FALSE(queue_->lost());
  fake_verbs::TakeAway();
  ExpectLost(0);
  ExpectLost(1);
  EXPECT_EQ(transport_->counters().lanes_failed.Get(), 2u);
  EXPECT_TRUE(queue_->lost());
  // Nothing wakes the owner from here on.
  EXPECT_TRUE(transport_->Arm());
  EXPECT_TRUE(transport_->Arm());
  // Everything is freed at the end, although the kernel answers no more calls.
  lanes_.clear();
}

TEST_F(DeviceLoss, IsSeenWhereDescriptorsSayNothing) {
  OpenLane();
  std::array<Completion, 1> completions;
  EXPECT_EQ(transport_->Poll(completions), 0u);
  EXPECT_TRUE(transport_->Arm());
  fake_verbs::TakeAway(/*hang_up=*/false);
  EXPECT_FALSE(transport_->Arm());  // the request for an event fails
  ExpectLost(0);
}

TEST_F(DeviceLoss, QueueThatFailsEndsItsLanes) {
  OpenLane();
  fake_verbs::TheDevice().poll_fails = true;
  ExpectLost(0);
  lanes_.clear();
  fake_verbs::TheDevice().poll_fails = false;
  EXPECT_TRUE(queue_->lost());  // permanently
  OpenLane();
  ExpectLost(0);
}

TEST_F(DeviceLoss, LaneThatComesLateEndsAtOnce) {
  OpenLane();
  fake_verbs::TheDevice().poll_fails = true;
  ExpectLost(0);
  const ConnectionId late = OpenLane();
  std::array<Completion, 1> completions;
  ASSERT_EQ(transport_->Poll(completions), 1u);  // no time has passed
  EXPECT_EQ(completions[0].kind, CompletionKind::kClosed);
  EXPECT_EQ(completions[0].connection, late);
  EXPECT_EQ(transport_->counters().lanes_failed.Get(), 2u);
}

TEST_F(DeviceLoss, NoMoreIsMadeOnIt) {
  fake_verbs::TakeAway();
  SystemRandom random;
  const auto lane = VerbsConnection::Create(VerbsEnd::kClient, queue_, domain_, {}, {}, random);
  ASSERT_FALSE(lane.ok());
  EXPECT_THAT(std::string(lane.status().message()), HasSubstr("RDMA device fake0"));
}

// Its old peer could still write into memory that belongs to another lane by then.
TEST_F(DeviceLoss, DeviceThatIsThereAndKeepsAQueuePairEndsTheProcess) {
  const ConnectionId lane = OpenLane();
  fake_verbs::TheDevice().reset_fails = true;
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(transport_->Close(lane), "device=fake0 ibv_modify_qp error=22");
}

}  // namespace
}  // namespace phub::transport
