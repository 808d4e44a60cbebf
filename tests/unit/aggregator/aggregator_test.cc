#include <gtest/gtest.h>

#include <array>
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

TEST(Engine, ForwardsTakenOnlyWhileItsSumIsInTheSlot) {
  int forwarded = 0;
  const auto endpoint = [](std::uint16_t port) {
    phub_endpoint made{};
    made.port = port;
    return made;
  };
  Engine engine({1 << 20, 1 << 20}, endpoint(1), [&](const auto& to, auto, auto) {
    if (to.port >= 10) ++forwarded;
  });
  LeaseRequest request;
  request.tenant = "a";
  request.keep_alive = kSecond;
  phub_lease& lease = request.lease;
  lease.number = 5;
  lease.slot_count = 1;
  lease.worker_count = 2;
  lease.count_max = 1;
  lease.core_loop = endpoint(2);
  lease.workers[0] = endpoint(10);
  lease.workers[1] = endpoint(11);
  ASSERT_TRUE(engine.Grant(request, 0).ok());
  const auto send = [&](std::uint8_t kind, std::uint8_t worker, std::uint32_t phase,
                        std::uint16_t from) {
    phub_packet packet{};
    packet.lease = 5;
    packet.kind = kind;
    packet.worker = worker;
    packet.phase = phase;
    std::array<std::uint8_t, PHUB_PACKET_BYTES> bytes{};
    phub_packet_encode(&packet, &lease.key, bytes.data());
    engine.Receive(bytes, endpoint(from));
    return std::exchange(forwarded, 0);
  };
  EXPECT_EQ(send(PHUB_PACKET_TAKEN, PHUB_EVERY_WORKER, 0, 2), 0) << "nothing is summed";
  send(PHUB_PACKET_PAYLOAD, 0, 0, 10);
  send(PHUB_PACKET_PAYLOAD, 1, 0, 11);
  EXPECT_EQ(send(PHUB_PACKET_TAKEN, PHUB_EVERY_WORKER, 0, 2), 2);
  EXPECT_EQ(send(PHUB_PACKET_TAKEN, PHUB_EVERY_WORKER, 1, 2), 0);
  send(PHUB_PACKET_PAYLOAD, 0, 1, 10);
  EXPECT_EQ(send(PHUB_PACKET_TAKEN, PHUB_EVERY_WORKER, 0, 2), 0) << "the slot answers instead";
  EXPECT_EQ(engine.counters().taken_dropped, 3u);
  EXPECT_EQ(engine.Expire(kSecond - 1).size(), 0u);
  EXPECT_EQ(engine.Expire(kSecond), std::vector<std::uint32_t>{5});
  EXPECT_EQ(engine.bytes_used(), 0u);
  EXPECT_EQ(engine.slots(), 0u);
}

}  // namespace
}  // namespace phub::aggregator
