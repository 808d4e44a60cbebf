// Lanes that use another transport because RDMA fails. The daemon keeps nothing of the failed
// attempts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "common/transport/pending_lanes.h"
#include "common/transport/tcp/lane_kind.h"
#include "common/wire/verbs_lane.h"
#include "phub/client.h"
#include "tests/unit/client/session/fake_rack.h"
#include "tests/verbs/fake_verbs.h"

namespace phub::client {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The daemon's end of the data port for clients that request lanes over verbs.
class VerbsPort final : public transport::LaneKind {
 public:
  enum class Answer : std::uint8_t { kNothing, kOffer };
  explicit VerbsPort(Answer answer) : answer_(answer) {}

  std::size_t request_bytes() const override {
    return wire::kLaneHelloBytes + wire::kVerbsOfferBytes;
  }
  bool Claims(std::span<const std::byte> first) const override {
    wire::LaneHello hello;
    return wire::DecodeVerbsHello(first, hello);
  }
  // Refuses offers whose address has this value in its last byte but one.
  void Refuse(std::byte subnet) { refused_ = subnet; }
  Outcome Decide(Descriptor& socket, std::span<const std::byte> request, const std::string&,
                 wire::LaneRefusal& refusal) override {
    wire::VerbsOffer asked;
    EXPECT_TRUE(wire::DecodeVerbsOffer(request.subspan(wire::kLaneHelloBytes), asked));
    wire::LaneHello hello;
    EXPECT_TRUE(wire::DecodeVerbsHello(request.first(wire::kLaneHelloBytes), hello));
    const std::lock_guard lock(mutex_);  // a test may read this as soon as a client is answered
    nonces_.push_back(std::to_integer<int>(hello.nonce.front()));
    subnets_.push_back(asked.gid[14]);
    if (asked.gid[14] == refused_) {
      refusal = wire::LaneRefusal::kCapacity;
      return Outcome::kRefused;
    }
    if (answer_ == Answer::kOffer) {
      transport::SendWelcome(socket, transport::WelcomeOf(wire::kLaneVersion));
      std::array<std::byte, wire::kVerbsOfferBytes> offer;
      wire::EncodeVerbsOffer({.queue_pair = 5,
                              .inbox_address = 4096,
                              .inbox_bytes = wire::kInboxBytesMin,
                              .messages_max = 16},
                             offer);
      EXPECT_EQ(send(socket.get(), offer.data(), offer.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(offer.size()));
    }
    sockets_.push_back(std::move(socket));
    return Outcome::kTaken;
  }

  std::size_t asked() { return subnets().size(); }
  std::vector<std::byte> subnets() {  // by client, in order
    const std::lock_guard lock(mutex_);
    return subnets_;
  }
  std::vector<int> nonces() {  // as numbered by the daemon
    const std::lock_guard lock(mutex_);
    return nonces_;
  }
  // Waits for the message of this lane's client after the answer, or for the lane's end.
  std::vector<std::byte> Word(std::size_t lane) {
    const std::lock_guard lock(mutex_);
    std::byte word{};
    timeval patience{.tv_sec = 10, .tv_usec = 0};
    setsockopt(sockets_[lane].get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const ssize_t got = recv(sockets_.at(lane).get(), &word, 1, 0);
    EXPECT_GE(got, 0);
    return std::vector<std::byte>(got == 1 ? 1 : 0, word);
  }

 private:
  const Answer answer_;
  std::mutex mutex_;
  std::byte refused_{0xFF};
  std::vector<std::byte> subnets_;
  std::vector<int> nonces_;
  std::vector<Descriptor> sockets_;
};

class VerbsLanes : public ::testing::Test {
 protected:
  VerbsLanes() { fake_verbs::Reset(); }
  JobOptions Options(TransportChoice transport = TransportChoice::kAuto) const {
    return {.job = "digits", .rank = 1, .world_size = 2, .transport = transport};
  }
};

TEST_F(VerbsLanes, DaemonThatTakesTooLongIsAskedOnceAndThenItIsTcp) {
  VerbsPort port(VerbsPort::Answer::kNothing);
  FakeRack rack({3}, {.other_lanes = &port});
  const auto begun = std::chrono::steady_clock::now();
  auto job = rack.Join(Options(), 0, milliseconds(1200));
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  EXPECT_EQ(job->transports(), "tcp");
  EXPECT_EQ(port.asked(), 1u);  // not again for each lane
  EXPECT_GE(std::chrono::steady_clock::now() - begun, milliseconds(600));
  auto key = job->AddKey("w", f32, 100, None{});
  ASSERT_TRUE(key.ok());
  EXPECT_TRUE(key->PushPull().Wait().ok());
  EXPECT_TRUE(job->Leave().ok());
}

TEST_F(VerbsLanes, WhoInsistsOnVerbsWaitsForAllOfTheTimeAndIsToldWhy) {
  VerbsPort port(VerbsPort::Answer::kNothing);
  FakeRack rack({1}, {.other_lanes = &port});
  const auto job = rack.Join(Options(TransportChoice::kVerbs), 0, milliseconds(200));
  ASSERT_FALSE(job.ok());
  EXPECT_EQ(job.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(job.status().message(), HasSubstr("did not answer the lane hello within "));
}

TEST_F(VerbsLanes, EndThatCannotBeConnectedIsNoLaneAndThenItIsTcp) {
  fake_verbs::TheDevice().connect_fails = true;
  VerbsPort port(VerbsPort::Answer::kOffer);
  FakeRack rack({2}, {.other_lanes = &port});
  auto job = rack.Join(Options());
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  EXPECT_EQ(job->transports(), "tcp");
  ASSERT_EQ(port.asked(), 2u);
  for (std::size_t lane = 0; lane < 2; ++lane) EXPECT_TRUE(port.Word(lane).empty());
  // A nonce for each transport of each lane.
  const std::vector<wire::Nonce> nonces = rack[0].nonces();
  ASSERT_EQ(nonces.size(), 2u);
  EXPECT_EQ(nonces[0].front(), std::byte{3});
  EXPECT_TRUE(job->Leave().ok());
}

TEST_F(VerbsLanes, DeviceThatDoesNotReachTheDaemonIsFollowedByAnother) {
  fake_verbs::TheDevice().second_device = true;
  VerbsPort port(VerbsPort::Answer::kOffer);
  port.Refuse(std::byte{0});
  FakeRack rack({2}, {.other_lanes = &port});
  auto job = rack.Join(Options(TransportChoice::kVerbs));
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  EXPECT_EQ(job->transports(), "verbs");
  const std::byte near{0}, far{1};
  EXPECT_THAT(port.subnets(), ElementsAre(near, far, near, far));
  EXPECT_TRUE(job->Leave().ok());
}

TEST_F(VerbsLanes, DeviceThatIsFullIsFollowedByAnother) {
  fake_verbs::TheDevice().second_device = fake_verbs::TheDevice().first_is_full = true;
  VerbsPort port(VerbsPort::Answer::kOffer);
  FakeRack rack({2}, {.other_lanes = &port});
  auto job = rack.Join(Options(TransportChoice::kVerbs));
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  EXPECT_EQ(job->transports(), "verbs");
  const std::byte far{1};
  EXPECT_THAT(port.subnets(), ElementsAre(far, far));
  EXPECT_TRUE(job->Leave().ok());
}

TEST_F(VerbsLanes, WhoInsistsOnVerbsIsToldOfEachDevice) {
  fake_verbs::TheDevice().second_device = fake_verbs::TheDevice().first_is_full = true;
  VerbsPort port(VerbsPort::Answer::kOffer);
  port.Refuse(std::byte{1});
  FakeRack rack({1}, {.other_lanes = &port});
  const auto job = rack.Join(Options(TransportChoice::kVerbs));
  ASSERT_FALSE(job.ok());
  EXPECT_THAT(job.status().message(),
              HasSubstr("verbs: RDMA device fake0 has no protection domain left"));
  EXPECT_EQ(port.asked(), 1u);
}

TEST_F(VerbsLanes, LanesThatTakeTooLongToFailAreNotTriedForEver) {
  fake_verbs::TheDevice().connect_fails = true;
  fake_verbs::TheDevice().connect_time = 300 * kMillisecond;
  VerbsPort port(VerbsPort::Answer::kOffer);
  FakeRack rack({4}, {.other_lanes = &port});
  auto job = rack.Join(Options(), 0, milliseconds(1200));
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  EXPECT_EQ(job->transports(), "tcp");
  EXPECT_GE(port.asked(), 1u);
  EXPECT_LE(port.asked(), 2u);
  EXPECT_TRUE(job->Leave().ok());
}

TEST_F(VerbsLanes, NoncesThatBecameOldMeanwhileAreAskedForAgain) {
  fake_verbs::TheDevice().connect_time = 100 * kMillisecond;
  VerbsPort port(VerbsPort::Answer::kOffer);
  FakeRack rack({3}, {.nonce_lifetime = 100 * kMillisecond, .other_lanes = &port});
  auto job = rack.Join(Options(TransportChoice::kVerbs));
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  // First three nonces; then those of the remaining two transports; then that of the last.
  EXPECT_THAT(port.nonces(), ElementsAre(1, 4, 6));
  EXPECT_TRUE(job->Leave().ok());
}

TEST_F(VerbsLanes, DevicesThatTheHostNamesAreTakenInTurn) {
  fake_verbs::TheDevice().second_device = true;
  VerbsPort port(VerbsPort::Answer::kOffer);
  FakeRack rack({3}, {.other_lanes = &port});
  ASSERT_EQ(setenv("PHUB_VERBS_DEVICES", "fake1,fake0", 1), 0);
  auto job = rack.Join(Options());
  ASSERT_EQ(unsetenv("PHUB_VERBS_DEVICES"), 0);
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  EXPECT_EQ(job->transports(), "verbs");
  EXPECT_THAT(port.subnets(), ElementsAre(std::byte{1}, std::byte{0}, std::byte{1}));
  EXPECT_TRUE(job->Leave().ok());
}

TEST_F(VerbsLanes, DaemonIsToldOnceTheEndIsConnected) {
  VerbsPort port(VerbsPort::Answer::kOffer);
  FakeRack rack({1}, {.other_lanes = &port});
  auto job = rack.Join(Options());
  ASSERT_TRUE(job.ok()) << ToString(job.status());
  EXPECT_EQ(job->transports(), "verbs");
  EXPECT_EQ(port.Word(0), std::vector{wire::kVerbsReady});
  EXPECT_TRUE(job->Leave().ok());
}

}  // namespace
}  // namespace phub::client
