// Lingering over several lanes: the lane whose bytes are awaited, and the lanes that wait with it.
#include "common/transport/stream/stream_transport.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "common/wire/message.h"
#include "tests/sim/sim_transport.h"

namespace phub::sim {
namespace {

constexpr std::size_t kLinger = 16 * 1024;
constexpr std::uint32_t kPayload = 1024 * 1024;
constexpr std::size_t kPiece = 8 * 1024;
constexpr DurationNs kPieceTime = 200 * kMicrosecond;

class Lingering : public ::testing::Test {
 protected:
  SimNetwork::ConnectionPair Connect() {
    auto pair = network_.Connect(0, 1);
    EXPECT_NE(transport_.Adopt(*pair.first, landing_), transport::ConnectionId{});
    return pair;
  }
  static void Write(SimNetwork::Connection& end, std::span<const std::byte> bytes) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    ASSERT_EQ(end.Writev({&part, 1}).bytes, bytes.size());
  }
  static void WriteHeader(SimNetwork::Connection& end, wire::MessageKind kind,
                          std::uint32_t payload_bytes) {
    wire::MessageHeader header;
    header.kind = kind;
    header.payload_bytes = payload_bytes;
    header.slot = SlotIndex{0};
    std::array<std::byte, wire::kHeaderBytes> bytes;
    wire::EncodeHeader(header, bytes);
    Write(end, bytes);
  }
  // Receives all arrived bytes, like an owner that is idle afterwards. Returns lingering's answer.
  DurationNs TakeIn() {
    while (network_.Step()) {
    }
    now_ += kPieceTime;
    transport_.Tick(now_);
    std::array<transport::Completion, 16> completions;
    std::size_t count = 0;
    do {
      count = transport_.Poll(completions);
      received_ += count;
      transport_.Release({completions.data(), count});
    } while (count > 0 || !transport_.Arm());
    return transport_.TakeLinger(now_);
  }
  DurationNs Flow(SimNetwork::Connection& end, int pieces) {
    DurationNs answer = 0;
    for (int i = 0; i < pieces; ++i) {
      Write(end, std::vector<std::byte>(kPiece));
      answer = TakeIn();
    }
    return answer;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(kPayload);
  std::array<transport::LandingSlot, 1> landing_{{{memory_.data(), kPayload}}};
  SimNetwork network_{1, {}};
  SimNetwork::ConnectionPair long_ = {};
  SimNetwork::ConnectionPair short_ = {};
  SimTransport transport_{network_, 8, kLinger};
  TimeNs now_ = 0;
  std::size_t received_ = 0;

  void SetUp() override {
    long_ = Connect();
    short_ = Connect();
    WriteHeader(*long_.second, wire::MessageKind::kGradient, kPayload);
  }
};

TEST_F(Lingering, InsideALongPayloadThatComesInPieces) { EXPECT_GT(Flow(*long_.second, 20), 0); }

TEST_F(Lingering, ALaneThatStoppedInsideAPayloadMakesNobodyWait) {
  ASSERT_GT(Flow(*long_.second, 20), 0);
  for (std::size_t i = 1; i <= 4; ++i) {
    WriteHeader(*short_.second, wire::MessageKind::kCredit, 0);
    EXPECT_EQ(TakeIn(), 0);
    EXPECT_EQ(received_, i);
  }
}

TEST_F(Lingering, ARunInWhichNothingCameDoesNotEndAFlow) {
  ASSERT_GT(Flow(*long_.second, 20), 0);
  EXPECT_EQ(TakeIn(), 0);
  EXPECT_GT(Flow(*long_.second, 1), 0);
}

TEST_F(Lingering, ALaneThatEndsInsideAPayloadIsNotWaitedFor) {
  ASSERT_GT(Flow(*long_.second, 20), 0);
  Write(*long_.second, std::vector<std::byte>(kPiece));
  long_.second.reset();
  EXPECT_EQ(TakeIn(), 0);
}

}  // namespace
}  // namespace phub::sim
