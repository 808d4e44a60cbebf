// The daemon's ends of lanes: requests, queues, and answers.
#include "common/transport/verbs/verbs_acceptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/verbs/fake_verbs.h"

namespace phub::transport {
namespace {

constexpr DurationNs kPatience = 60 * kSecond;

// Admits everyone, and keeps the lanes. Calls for the parts of the first `held` lanes return once
// they are released.
class OpenGate final : public VerbsGate {
 public:
  explicit OpenGate(std::size_t held = 0)
      : held_(held),
        device_(VerbsDevice::Open({}).value()),
        queue_(VerbsQueue::Create(device_, 1 << 20).value()),
        domain_(VerbsDomain::Create(device_).value()) {}

  wire::LaneRefusal Admit(const wire::LaneHello&, std::string_view) override {
    return wire::LaneRefusal::kNone;
  }
  absl::StatusOr<VerbsLaneParts> Parts(const wire::LaneHello&) override {
    if (refuses) return absl::AbortedError("the job has ended");
    std::unique_lock lock(mutex_);
    const bool held = ++begun_ <= held_;
    changed_.notify_all();
    if (held) changed_.wait(lock, [this] { return let_go_; });
    return VerbsLaneParts{.queue = queue_, .domain = domain_, .staging = {}, .limits = {}};
  }
  void Attach(const wire::LaneHello& hello, std::unique_ptr<Connection> connection,
              std::string) override {
    const std::lock_guard lock(mutex_);
    lanes_.push_back(std::move(connection));
    jobs_.push_back(hello.incarnation.value);
    changed_.notify_all();
  }
  // The jobs of attached lanes, in order, once there are `count`.
  std::vector<std::uint64_t> WaitForJobs(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(kPatience),
                      [&] { return jobs_.size() >= count; });
    return jobs_;
  }
  void WaitUntilBegun(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::nanoseconds(kPatience),
                                  [&] { return begun_ >= count; }));
  }
  void LetGo() {
    const std::lock_guard lock(mutex_);
    let_go_ = true;
    changed_.notify_all();
  }
  std::vector<std::byte> Offer() const {
    SystemRandom random;
    const auto client =
        VerbsConnection::Create(VerbsEnd::kClient, queue_, domain_, {}, {}, random).value();
    std::vector<std::byte> bytes(wire::kVerbsOfferBytes);
    wire::EncodeVerbsOffer(client->Offer(), std::span(bytes).first<wire::kVerbsOfferBytes>());
    return bytes;
  }

  std::atomic<bool> refuses{false};

 private:
  const std::size_t held_;
  const std::shared_ptr<const VerbsDevice> device_;
  const std::shared_ptr<VerbsQueue> queue_;
  const std::shared_ptr<VerbsDomain> domain_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Connection>> lanes_;
  std::vector<std::uint64_t> jobs_;
  std::size_t begun_ = 0;
  bool let_go_ = false;
};

class VerbsAcceptorTest : public ::testing::Test {
 protected:
  VerbsAcceptorTest() { fake_verbs::Reset(); }

  // Requests a lane for another rank each time. ready: it reports that at once. Returns the
  // client's end of the connection, if the request is not refused.
  Descriptor Try(VerbsAcceptor& acceptor, const OpenGate& gate, std::uint64_t job, bool ready) {
    wire::LaneHello hello;
    hello.version_min = hello.version_max = wire::kLaneVersion;
    hello.incarnation = Incarnation{job};
    hello.rank = Rank{next_rank_++};
    std::array<std::byte, wire::kLaneHelloBytes> hello_bytes;
    wire::EncodeVerbsHello(hello, hello_bytes);
    std::vector<std::byte> request(hello_bytes.begin(), hello_bytes.end());
    const std::vector<std::byte> offer = gate.Offer();
    request.insert(request.end(), offer.begin(), offer.end());
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    Descriptor socket(ends[0]);
    wire::LaneRefusal refusal{};
    if (ready) Say(ends[1], wire::kVerbsReady);
    Descriptor peer(ends[1]);
    if (acceptor.Decide(socket, request, "10.0.0.2:5000", refusal) == LaneKind::Outcome::kTaken) {
      EXPECT_FALSE(socket);
      return peer;
    }
    EXPECT_EQ(refusal, wire::LaneRefusal::kCapacity);
    return {};
  }
  Descriptor Ask(VerbsAcceptor& acceptor, const OpenGate& gate, std::uint64_t job,
                 bool ready = true) {
    Descriptor peer = Try(acceptor, gate, job, ready);
    EXPECT_TRUE(peer);
    return peer;
  }

  Descriptor AskAgain(VerbsAcceptor& acceptor, const OpenGate& gate, std::uint64_t job) {
    --next_rank_;
    return Ask(acceptor, gate, job, /*ready=*/false);
  }

  static void Say(int socket, std::byte word) {
    EXPECT_EQ(send(socket, &word, 1, MSG_NOSIGNAL), 1);
  }
  // Reads the daemon's welcome and its offer.
  static void ExpectOffer(const Descriptor& peer) {
    std::array<std::byte, wire::kLaneWelcomeBytes + wire::kVerbsOfferBytes> bytes;
    ASSERT_EQ(recv(peer.get(), bytes.data(), bytes.size(), MSG_WAITALL),
              static_cast<ssize_t>(bytes.size()));
    wire::LaneWelcome welcome;
    ASSERT_TRUE(
        wire::DecodeLaneWelcome(std::span(bytes).first<wire::kLaneWelcomeBytes>(), welcome));
    EXPECT_EQ(welcome.version, wire::kLaneVersion);
  }
  // Waits until the daemon closes the connection.
  static void ExpectClosed(const Descriptor& peer) {
    std::byte byte{};
    EXPECT_EQ(recv(peer.get(), &byte, 1, 0), 0);
  }

  const SystemClock clock_;
  SystemRandom random_;
  std::uint32_t next_rank_ = 0;
};

TEST_F(VerbsAcceptorTest, AddressThatLeadsNowhereHoldsUpNeitherTheListenerNorOtherJobs) {
  OpenGate gate;
  VerbsAcceptor acceptor(gate, random_);
  // As long as the kernel takes to resolve a peer that does not exist: one second.
  const DurationNs time = kSecond;
  fake_verbs::TheDevice().connect_time = time;
  std::vector<Descriptor> peers;
  const TimeNs begun = clock_.Now();
  constexpr std::size_t kOfOne = 3 * VerbsAcceptor::kThreads;
  for (std::size_t i = 0; i < kOfOne; ++i) peers.push_back(Ask(acceptor, gate, 1));
  peers.push_back(Ask(acceptor, gate, 2));
  EXPECT_LT(clock_.Now() - begun, time);
  const std::vector<std::uint64_t> jobs = gate.WaitForJobs(kOfOne + 1);
  ASSERT_EQ(jobs.size(), kOfOne + 1);
  // After those that had begun by then, and concurrently with others.
  EXPECT_LT(std::ranges::find(jobs, 2u) - jobs.begin(), 2 * VerbsAcceptor::kThreads);
}

TEST_F(VerbsAcceptorTest, PeerIsToldThatNoLaneCouldBeMade) {
  OpenGate gate;
  VerbsAcceptor acceptor(gate, random_);
  gate.refuses = true;
  const Descriptor peer = Ask(acceptor, gate, 1, /*ready=*/false);
  std::array<std::byte, wire::kLaneWelcomeBytes> bytes;
  ASSERT_EQ(recv(peer.get(), bytes.data(), bytes.size(), MSG_WAITALL),
            static_cast<ssize_t>(bytes.size()));
  wire::LaneWelcome welcome;
  ASSERT_TRUE(wire::DecodeLaneWelcome(bytes, welcome));
  EXPECT_EQ(welcome.refusal, wire::LaneRefusal::kCapacity);
  ExpectClosed(peer);
}

TEST_F(VerbsAcceptorTest, LanesThatFailInALoopDoNotFillTheLog) {
  OpenGate gate;
  VerbsAcceptor acceptor(gate, random_);
  gate.refuses = true;
  std::atomic<int> lines{0};
  SetLogSink(
      [](void* count, LogLevel, const std::string& line) {
        *static_cast<std::atomic<int>*>(count) += line.find("event=lane_failed") != line.npos;
      },
      &lines);
  for (int i = 0; i < 30; ++i) {
    const Descriptor peer = Ask(acceptor, gate, 1, /*ready=*/false);
    std::array<std::byte, wire::kLaneWelcomeBytes> bytes;
    EXPECT_EQ(recv(peer.get(), bytes.data(), bytes.size(), MSG_WAITALL),
              static_cast<ssize_t>(bytes.size()));
  }
  SetLogSink(nullptr, nullptr);
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, 4);  // one in ten seconds
}

TEST_F(VerbsAcceptorTest, ClientThatCannotConnectLeavesNothingBehind) {
  OpenGate gate;
  VerbsAcceptor acceptor(gate, random_, /*ready_timeout=*/3600 * kSecond);
  const std::uint64_t before = fake_verbs::TheDevice().queue_pairs;
  Descriptor gone = Ask(acceptor, gate, 1, /*ready=*/false);
  ASSERT_NO_FATAL_FAILURE(ExpectOffer(gone));
  EXPECT_EQ(gate.WaitForJobs(0).size(), 0u);  // the job does not know of it
  gone.Reset();
  const Descriptor noisy = Ask(acceptor, gate, 2, /*ready=*/false);
  ASSERT_NO_FATAL_FAILURE(ExpectOffer(noisy));
  Say(noisy.get(), std::byte{1});
  ExpectClosed(noisy);
  const Descriptor peer = Ask(acceptor, gate, 3);
  EXPECT_EQ(gate.WaitForJobs(1), std::vector<std::uint64_t>{3});
  const TimeNs give_up = clock_.Now() + kPatience;
  while (fake_verbs::TheDevice().queue_pairs > before + 1 && clock_.Now() < give_up) {
    std::this_thread::yield();
  }
  EXPECT_EQ(fake_verbs::TheDevice().queue_pairs, before + 1);
}

TEST_F(VerbsAcceptorTest, SilentClientsAreGivenUpInTimeAndHoldUpNobody) {
  OpenGate gate;
  constexpr DurationNs kTime = 2 * kSecond;
  VerbsAcceptor acceptor(gate, random_, kTime);
  std::vector<Descriptor> silent;
  const TimeNs begun = clock_.Now();
  for (std::size_t i = 0; i < 4 * VerbsAcceptor::kThreads; ++i) {
    silent.push_back(Ask(acceptor, gate, 1, /*ready=*/false));
  }
  const Descriptor slow = Ask(acceptor, gate, 2, /*ready=*/false);
  const Descriptor peer = Ask(acceptor, gate, 3);
  EXPECT_EQ(gate.WaitForJobs(1), std::vector<std::uint64_t>{3});
  ASSERT_NO_FATAL_FAILURE(ExpectOffer(slow));
  Say(slow.get(), wire::kVerbsReady);
  EXPECT_EQ(gate.WaitForJobs(2).back(), 2u);
  for (const Descriptor& one : silent) {
    ASSERT_NO_FATAL_FAILURE(ExpectOffer(one));
    ExpectClosed(one);
  }
  EXPECT_GE(clock_.Now() - begun, kTime);
  EXPECT_EQ(gate.WaitForJobs(2).size(), 2u);
}

TEST_F(VerbsAcceptorTest, WhoAsksAgainHasGivenTheFirstUp) {
  OpenGate gate;
  VerbsAcceptor acceptor(gate, random_, /*ready_timeout=*/3600 * kSecond);
  const Descriptor first = Ask(acceptor, gate, 1, /*ready=*/false);
  ASSERT_NO_FATAL_FAILURE(ExpectOffer(first));
  const Descriptor second = AskAgain(acceptor, gate, 1);
  ExpectClosed(first);
  ASSERT_NO_FATAL_FAILURE(ExpectOffer(second));
  Say(second.get(), wire::kVerbsReady);
  EXPECT_EQ(gate.WaitForJobs(1).size(), 1u);
}

TEST_F(VerbsAcceptorTest, WhatWasAskedForLaterCountsThoughItIsMadeFirst) {
  OpenGate gate(/*held=*/1);
  VerbsAcceptor acceptor(gate, random_);
  const Descriptor first = Ask(acceptor, gate, 1, /*ready=*/false);
  gate.WaitUntilBegun(1);
  const Descriptor second = AskAgain(acceptor, gate, 1);
  ASSERT_NO_FATAL_FAILURE(ExpectOffer(second));
  gate.LetGo();
  ASSERT_NO_FATAL_FAILURE(ExpectOffer(first));
  ExpectClosed(first);
  Say(second.get(), wire::kVerbsReady);
  EXPECT_EQ(gate.WaitForJobs(1).size(), 1u);
}

TEST_F(VerbsAcceptorTest, NothingIsMadeOfARequestThatWasGivenUpBeforeItsTurn) {
  OpenGate gate(/*held=*/VerbsAcceptor::kThreads);
  VerbsAcceptor acceptor(gate, random_);
  std::vector<Descriptor> peers;
  for (std::size_t i = 0; i < VerbsAcceptor::kThreads; ++i) peers.push_back(Ask(acceptor, gate, 1));
  gate.WaitUntilBegun(VerbsAcceptor::kThreads);
  const Descriptor first = Ask(acceptor, gate, 2, /*ready=*/false);
  const Descriptor second = AskAgain(acceptor, gate, 2);
  ExpectClosed(first);
  gate.LetGo();
  ASSERT_NO_FATAL_FAILURE(ExpectOffer(second));
  Say(second.get(), wire::kVerbsReady);
  EXPECT_EQ(gate.WaitForJobs(peers.size() + 1).size(), peers.size() + 1);
}

TEST_F(VerbsAcceptorTest, JobLeavesAsManyPlacesToOthersAsItHas) {
  OpenGate gate;
  VerbsAcceptor acceptor(gate, random_, /*ready_timeout=*/3600 * kSecond, /*waiting_max=*/8);
  std::vector<Descriptor> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(Ask(acceptor, gate, 1, /*ready=*/false));
  EXPECT_FALSE(Try(acceptor, gate, 1, /*ready=*/false));
  for (int i = 0; i < 2; ++i) silent.push_back(Ask(acceptor, gate, 2, /*ready=*/false));
  EXPECT_FALSE(Try(acceptor, gate, 2, /*ready=*/false));
  const Descriptor peer = Ask(acceptor, gate, 3);
  EXPECT_EQ(gate.WaitForJobs(1), std::vector<std::uint64_t>{3});
  // Places become free when their clients give up.
  silent.clear();
  for (int i = 0; i < 4; ++i) {
    const TimeNs give_up = clock_.Now() + kPatience;
    Descriptor again = Try(acceptor, gate, 1, /*ready=*/false);
    while (!again && clock_.Now() < give_up) again = Try(acceptor, gate, 1, /*ready=*/false);
    ASSERT_TRUE(again);
    silent.push_back(std::move(again));
  }
}

TEST_F(VerbsAcceptorTest, EndsWithRequestsThatWait) {
  OpenGate gate;
  std::vector<Descriptor> peers;
  {
    VerbsAcceptor acceptor(gate, random_);
    fake_verbs::TheDevice().connect_time = kSecond;
    for (int i = 0; i < 40; ++i) peers.push_back(Ask(acceptor, gate, 1));
  }
  EXPECT_LT(gate.WaitForJobs(0).size(), 40u);
}

}  // namespace
}  // namespace phub::transport
