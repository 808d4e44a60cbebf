// A job whose gradients a real phub-aggregator sums in the kernel, behind a real network interface:
// the bits are those of tcp. Workers and daemon are in one network namespace, the aggregator in
// another. Needs the rights to create namespaces and to load programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "common/aggregation/endpoint_text.h"
#include "tests/process/lossy_relay.h"
#include "tests/process/sum_job.h"
#include "tests/process/sum_streams_fixture.h"
#include "tests/process/two_networks.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SumXdp : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string problem = networks_.ProblemWithPrograms(); !problem.empty())
      GTEST_SKIP() << problem;
    ASSERT_TRUE(TurnGroOn(TwoNetworks::kOurInterface));
  }
  // What `phubctl job get` shows once streams are open.
  static std::string AwaitStreams(const std::string& endpoint) {
    const auto shown = [&] {
      return RunToEnd(kPhubctl, {"--endpoint", endpoint, "job", "get", "job"}).output;
    };
    std::string way = shown();
    for (int i = 0; i < 300 && way.find("tcp: ") != std::string::npos; ++i) {
      Sleep(100 * kMillisecond);
      way = shown();
    }
    return way;
  }
  static void ExpectEqual(const Training& job, const Training& expected) {
    for (std::size_t rank = 0; rank < kRanks; ++rank)
      ASSERT_EQ(job.Parameters(rank), expected.Parameters(rank)) << "rank " << rank;
  }
  TwoNetworks networks_;
};

TEST_F(SumXdp, HasTheBitsOfTcpAlsoIfTheAggregatorIsKilled) {
  AggregatorProcess aggregator(
      std::string(TwoNetworks::kItsAddress) + ":7701", {"--xdp", TwoNetworks::kItsInterface},
      [this](const std::string& program, const std::vector<std::string>& arguments) {
        return networks_.StartInOther(program, arguments);
      });
  EXPECT_THAT(aggregator.process().StandardError(), HasSubstr("mode=native"));
  const std::string address = TwoNetworks::kDataAddress;
  DaemonProcess daemon({"--cores", "2", "--pin", "off", "--listen", address + ":0", "--insecure",
                        "--sum-listen", address, "--sum-aggregator", aggregator.control()});
  DaemonProcess plain({"--cores", "1", "--pin", "off"});
  ASSERT_FALSE(daemon.endpoint().empty()) << daemon.process().Outputs();
  const std::string endpoint = address + daemon.endpoint().substr(daemon.endpoint().rfind(':'));
  Training expected(plain.endpoint(), Options("job"));
  Training job(endpoint, Options("job"));
  const auto check = [&](int iterations) {
    expected.Train(iterations);
    ExpectEqual(job, expected);
  };
  ASSERT_THAT(AwaitStreams(endpoint), HasSubstr("aggregator 10.2.0.2:7701"));
  job.Train(20);
  check(20);
  // Expect: the program has added everything. It sends sums itself after the core loop's first
  // datagram.
  const std::uint64_t sums = 20 * kBlocks;
  EXPECT_EQ(aggregator.Counter("verdicts_total/add_last"), sums);
  EXPECT_GE(aggregator.Counter("kernel_sums_sent_total"), sums / 2);
  EXPECT_EQ(aggregator.Counter("dropped_total/corrupt"), 0u);

  // Expect: the program ends with its process, and another attaches.
  aggregator.process().Signal(SIGSTOP);
  job.Begin();
  aggregator.process().Signal(SIGKILL);
  job.End();
  check(1);
  aggregator.Restart();
  EXPECT_THAT(AwaitStreams(endpoint), HasSubstr("aggregator 10.2.0.2:7701"));
  job.Train(10);
  check(10);
  EXPECT_GE(aggregator.Counter("kernel_sums_sent_total"), 10 * kBlocks / 2);
}

// The driver of lo has no XDP, so the network stack runs the program.
TEST_F(SumXdp, OfTwoTenantsAreExactThroughABadNetworkInGenericMode) {
  AggregatorProcess aggregator({"--xdp", "lo"});
  EXPECT_THAT(aggregator.process().StandardError(), HasSubstr("mode=generic"));
  SumShape shape{.iterations = 12,
                 .trouble = {.lost = 30, .repeated = 30, .repeated_late = 30, .delayed = 100}};
  SumJob first(shape, aggregator);
  shape.tenant = "b";
  shape.ranks = 5;
  shape.seed = 1001;
  SumJob second(shape, aggregator);
  first.Open();
  second.Open();
  const SystemClock clock;
  const TimeNs started = clock.Now();
  while (!first.done() || !second.done()) {
    first.Step();
    second.Step();
    ASSERT_LT(clock.Now() - started, 120 * kSecond) << "stuck";
  }
  for (const SumJob* job : {&first, &second}) {
    EXPECT_THAT(job->problems(), IsEmpty());
    EXPECT_EQ(job->bad_datagrams(), 0u);
    EXPECT_EQ(job->summed(), job->complete()) << "nothing needs tcp";
  }
  for (const char* counter : {"verdicts_total/repeated", "answers_sent_total",
                              "sums_repeated_total", "kernel_sums_sent_total"})
    EXPECT_GT(aggregator.Counter(counter), 0u) << counter;
  EXPECT_TRUE(aggregator.End(first.lease().number));
  EXPECT_TRUE(aggregator.End(second.lease().number));
  EXPECT_EQ(aggregator.List().pool_bytes_used(), 0u);
}

// lo carries datagrams that the sender has joined: to the program they are one that is too long.
TEST_F(SumXdp, DatagramsThatAreJoinedAreAddedEach) {
  constexpr std::uint16_t kSlots = 4;
  AggregatorProcess aggregator({"--xdp", "lo"});
  aggregation::DatagramSocket worker = LocalSocket();
  if (!worker.cuts()) GTEST_SKIP() << "the kernel does not join datagrams";
  v1::GrantLeaseRequest request;
  request.set_tenant("a");
  request.set_slot_count(kSlots);
  request.set_count_max(350);
  request.set_keep_alive_ms(600'000);
  request.set_core_loop("127.0.0.1:9");
  request.add_workers(aggregation::TextOf(worker.endpoint()));
  request.add_workers("127.0.0.1:10");
  v1::GrantLeaseResponse lease;
  ASSERT_TRUE(aggregator.Grant(request, lease).ok());
  phub_lease_key key{};
  std::memcpy(key.words, lease.key().data(), sizeof key.words);
  const std::vector<std::uint8_t> zeros(4 * 350);
  for (std::uint16_t slot = 0; slot < kSlots; ++slot) {
    phub_packet packet{};
    packet.lease = lease.number();
    packet.kind = PHUB_PACKET_PAYLOAD;
    packet.slot = slot;
    packet.count = 350;
    std::array<std::uint8_t, PHUB_PACKET_BYTES> header{};
    phub_packet_encode(&packet, &key, header.data());
    worker.Queue(aggregator.endpoint(), header, zeros);
  }
  worker.Flush();
  for (int i = 0; i < 3000 && aggregator.Counter("verdicts_total/store") < kSlots; ++i)
    Sleep(10 * kMillisecond);
  EXPECT_EQ(aggregator.Counter("verdicts_total/store"), kSlots);
  EXPECT_EQ(aggregator.Counter("kernel_passed_total"), 1u);
}

}  // namespace
}  // namespace phub::process
