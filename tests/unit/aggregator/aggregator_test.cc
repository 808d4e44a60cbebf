#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/engine.h"
#include "aggregator/lease_numbers.h"
#include "common/aggregation/endpoint_text.h"

namespace phub::aggregator {
namespace {

constexpr std::uint64_t kNow = 1'800'000'000'000;  // ms since 1970

TEST(LeaseNumbers, ARestartedProcessBeginsAfterAllNumbersOfTheOneBefore) {
  LeaseNumbers first;
  std::uint32_t last = 0;
  std::uint64_t now = kNow;
  for (int i = 0; i < 100; ++i) {
    const std::uint32_t number = first.Next(now);
    EXPECT_GT(number, last);
    last = number;
    now += LeaseNumbers::WaitMs(number, now);  // no grant ends before
    while (LeaseNumbers::WaitMs(number, now) != 0) ++now;
  }
  LeaseNumbers restarted;
  EXPECT_GT(restarted.Next(now), last);
}

TEST(LeaseNumbers, OnlyFastGrantsWaitLong) {
  LeaseNumbers numbers;
  const std::uint32_t number = numbers.Next(kNow);
  EXPECT_LE(LeaseNumbers::WaitMs(number, kNow), 1000 / LeaseNumbers::kPerSecond + 1);
  EXPECT_EQ(LeaseNumbers::WaitMs(number, kNow + 1000), 0u);
  EXPECT_GT(numbers.Next(kNow - 100'000), number) << "a clock that jumps back";
}

TEST(EndpointText, ParsesWhatItWrites) {
  for (const char* text : {"10.0.0.1:7701", "[fd00::1]:1", "0.0.0.0:65535"}) {
    const auto parsed = aggregation::ParseEndpoint(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(aggregation::TextOf(*parsed), text);
  }
  for (const char* text : {"", ":", "10.0.0.1", "10.0.0.1:", "10.0.0.1:65536", "10.0.0.1:-1",
                           "10.0.0.1:1 ", "[fd00::1:1", "fd00::1:1", "host:1", "[]:1"})
    EXPECT_FALSE(aggregation::ParseEndpoint(text).ok()) << text;
}

// Two workers and two slots.
class EngineTest : public ::testing::Test {
 protected:
  EngineTest() {
    phub_lease& lease = request_.lease;
    request_.tenant = "a";
    request_.keep_alive = kSecond;
    lease.number = 5;
    lease.slot_count = 2;
    lease.worker_count = 2;
    lease.count_max = 1;
    lease.core_loop = EndpointOf(2);
    lease.workers[0] = EndpointOf(10);
    lease.workers[1] = EndpointOf(11);
    EXPECT_TRUE(engine_.Grant(request_, 0).ok());
  }
  static phub_endpoint EndpointOf(std::uint16_t port) {
    phub_endpoint made{};
    made.port = port;
    return made;
  }
  // What was sent since the last call, as text: "sum 0.1" is that of slot 0 and phase 1, "ask 10
  // 0.1" tells the worker at port 10 that its contribution is missing.
  std::string Send(phub_packet packet, std::span<const std::uint8_t> payload, std::uint16_t from) {
    packet.lease = 5;
    packet.count = static_cast<__u16>(payload.size() / 4);
    packet.payload_sum = phub_payload_sum(payload.data(), packet.count);
    std::vector<std::uint8_t> bytes(PHUB_PACKET_BYTES);
    phub_packet_encode(&packet, &request_.lease.key, bytes.data());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    engine_.Receive(bytes, EndpointOf(from));
    return std::exchange(sent_, "");
  }
  std::string Contribute(std::uint8_t worker, std::uint16_t slot, std::uint32_t phase) {
    phub_packet packet{};
    packet.kind = PHUB_PACKET_PAYLOAD;
    packet.worker = worker;
    packet.slot = slot;
    packet.phase = phase;
    return Send(packet, {}, static_cast<std::uint16_t>(10 + worker));
  }
  std::string Nack(std::uint16_t number, std::uint32_t bits, std::uint32_t phase) {
    phub_packet packet{};
    packet.phase = phase;
    const phub_nack nack = {.number = number, .slot = 0};
    phub_packet_set_nack(&packet, &nack);
    std::array<std::uint8_t, 4> payload{};
    phub_store32(payload.data(), bits);
    return Send(packet, payload, 2);
  }
  void Note(const phub_endpoint& to, std::span<const std::uint8_t> header) {
    phub_packet packet{};
    phub_packet_decode(header.data(), &packet);
    if (!sent_.empty()) sent_ += ", ";
    sent_ += packet.kind == PHUB_PACKET_SUM ? "sum " : "ask " + std::to_string(to.port) + " ";
    sent_ += std::to_string(packet.slot) + "." + std::to_string(packet.phase);
  }

  LeaseRequest request_;
  std::string sent_;
  Engine engine_{{1 << 20, 1 << 20},
                 EndpointOf(1),
                 [this](const phub_endpoint& to, auto header, auto) { Note(to, header); }};
};

TEST_F(EngineTest, ANackMakesItAskWorkersOrSendSumsAgain) {
  EXPECT_EQ(Contribute(0, 0, 0), "");
  EXPECT_EQ(Contribute(1, 0, 0), "sum 0.0");
  EXPECT_EQ(Contribute(1, 1, 0), "");
  EXPECT_EQ(Nack(1, 3, 0), "sum 0.0, ask 10 1.0");
  EXPECT_EQ(Nack(2, 2, 0), "ask 10 1.0") << "only the slots that it names";
  EXPECT_EQ(Nack(3, 1, 1), "ask 10 0.1, ask 11 0.1") << "nothing of the phase has arrived";
  EXPECT_EQ(Nack(4, 0xfffffffd, 0), "sum 0.0") << "there are two slots";
  EXPECT_EQ(engine_.counters().sums_repeated, 2u);
  EXPECT_EQ(engine_.counters().sums, 3u);
}

TEST_F(EngineTest, RepeatedNacksHaveNoEffect) {
  EXPECT_EQ(Nack(2, 1, 0), "ask 10 0.0, ask 11 0.0");
  EXPECT_EQ(Nack(2, 1, 0), "") << "recorded";
  EXPECT_EQ(Nack(1, 1, 0), "") << "overtaken";
  EXPECT_EQ(engine_.counters().nacks_dropped, 2u);
  EXPECT_EQ(Nack(32000, 1, 0), "ask 10 0.0, ask 11 0.0");
  EXPECT_EQ(Nack(64000, 1, 0), "ask 10 0.0, ask 11 0.0");
  EXPECT_EQ(Nack(3, 1, 0), "ask 10 0.0, ask 11 0.0") << "numbers wrap";
  EXPECT_EQ(engine_.counters().nacks_dropped, 2u);
}

TEST_F(EngineTest, LeasesExpireAndLeaveNothing) {
  EXPECT_EQ(engine_.Expire(kSecond - 1).size(), 0u);
  EXPECT_EQ(engine_.Expire(kSecond), std::vector<std::uint32_t>{5});
  EXPECT_EQ(engine_.bytes_used(), 0u);
  EXPECT_EQ(engine_.slots(), 0u);
}

}  // namespace
}  // namespace phub::aggregator
