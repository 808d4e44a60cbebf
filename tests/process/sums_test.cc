// Sums in the network, end to end: a real phub-aggregator, with workers and core loops that drive
// the product's code over UDP sockets, through relays that lose, repeat, delay and reorder.
// PHUB_TEST_LONG=1: more seeds and worse networks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "common/aggregation/endpoint_text.h"
#include "tests/process/aggregator_process.h"
#include "tests/process/daemon_process.h"
#include "tests/process/sum_job.h"
#include "tests/support/http_client.h"
#include "tests/support/prometheus_text.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Trouble kBadNetwork{.lost = 30, .repeated = 30, .repeated_late = 30, .delayed = 100};
constexpr DurationNs kPatience = 120 * kSecond;

bool IsLongRun() { return std::getenv("PHUB_TEST_LONG") != nullptr; }

// False after kPatience: the jobs are stuck.
bool StepUntil(std::initializer_list<SumJob*> jobs, const std::function<bool()>& done) {
  const SystemClock clock;
  const TimeNs started = clock.Now();
  while (!done()) {
    for (SumJob* job : jobs) job->Step();
    if (clock.Now() - started > kPatience) return false;
  }
  return true;
}

void ExpectRight(const SumJob& job) {
  EXPECT_TRUE(job.done());
  EXPECT_THAT(job.problems(), IsEmpty());
  EXPECT_EQ(job.bad_datagrams(), 0u);
}

// Waits until the counter has grown by `by` over `from`.
bool Grows(AggregatorProcess& aggregator, const std::string& counter, std::uint64_t from,
           std::uint64_t by) {
  const SystemClock clock;
  for (const TimeNs started = clock.Now(); clock.Now() - started < kStartPatience;) {
    if (aggregator.Counter(counter) == from + by) return true;
    Sleep(5 * kMillisecond);
  }
  ADD_FAILURE() << counter << " is " << aggregator.Counter(counter) << ", not " << from + by;
  return false;
}

TEST(Sums, OfTwoTenantsAreExactThroughABadNetwork) {
  const std::uint64_t seeds = IsLongRun() ? 20 : 1;
  AggregatorProcess aggregator;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    SumShape shape{.iterations = IsLongRun() ? 40u : 12u, .trouble = kBadNetwork, .seed = seed};
    if (IsLongRun() && seed % 2 == 0) shape.trouble.lost = 200;
    SumJob first(shape, aggregator);
    shape.tenant = "b";
    shape.ranks = 5;
    shape.blocks = {1, 7, 3, 4};
    shape.seed += 1000;
    SumJob second(shape, aggregator);
    first.Open();
    second.Open();
    EXPECT_EQ(aggregator.List().leases_size(), 2);
    const bool finished =
        StepUntil({&first, &second}, [&] { return first.done() && second.done(); });
    ASSERT_TRUE(finished) << "seed " << seed << ": " << first.complete() << " and "
                          << second.complete() << " chunks";
    ExpectRight(first);
    ExpectRight(second);
    EXPECT_EQ(first.summed(), first.complete()) << "nothing needs tcp";
    // The network was bad: payloads were lost, so some were sent again.
    EXPECT_GT(first.nacks_sent(), 0u);
    EXPECT_GT(first.questions(), 0u);
    EXPECT_GT(first.payloads_sent(), shape.iterations * 14 * 3);
    std::printf("seed %lu: %lu payloads and %lu NACKs for %lu\n", seed,
                first.payloads_sent() + second.payloads_sent(),
                first.nacks_sent() + second.nacks_sent(), shape.iterations * (14 * 3 + 15 * 5));
    EXPECT_TRUE(aggregator.End(first.lease().number));
    EXPECT_TRUE(aggregator.End(second.lease().number));
  }
  for (const char* counter :
       {"packets_total/nack", "verdicts_total/repeated", "answers_sent_total",
        "sums_repeated_total", "nacks_dropped_total", "parameters_forwarded_total"})
    EXPECT_GT(aggregator.Counter(counter), 0u) << counter;
  EXPECT_EQ(aggregator.List().pool_bytes_used(), 0u);
}

TEST(Sums, AreExactIfTheAggregatorIsKilled) {
  AggregatorProcess aggregator;
  SumJob job({.iterations = 12, .trouble = kBadNetwork, .seed = 7}, aggregator);
  job.Open();
  std::uint32_t last = job.lease().number;
  const std::uint64_t kills = IsLongRun() ? 8 : 2;
  for (std::uint64_t kill = 1; kill <= kills; ++kill) {
    const std::uint64_t at = kill * 36 / (kills + 1);
    ASSERT_TRUE(StepUntil({&job}, [&] { return job.complete() >= at; }));
    aggregator.Restart();
    for (int i = 0; i < 50; ++i) job.Step();  // into a void, with the old lease
    job.Close();
    const std::uint64_t complete = job.complete();
    ASSERT_TRUE(StepUntil({&job}, [&] { return job.complete() > complete || job.done(); }));
    job.Open();
    EXPECT_GT(job.lease().number, last) << "a number was used again";
    last = job.lease().number;
  }
  ASSERT_TRUE(StepUntil({&job}, [&] { return job.done(); }));
  EXPECT_TRUE(job.done());
  EXPECT_THAT(job.problems(), IsEmpty());
  EXPECT_GT(job.summed(), 0u);
  EXPECT_LT(job.summed(), job.complete()) << "what was not taken goes over tcp";
}

using Bytes = std::vector<std::uint8_t>;

// A packet of worker 0 with a right tag and payload sum.
Bytes Packet(const phub_lease& lease, const std::function<void(phub_packet&)>& change) {
  phub_packet packet{};
  packet.kind = PHUB_PACKET_PAYLOAD;
  packet.lease = lease.number;
  packet.count = 4;
  change(packet);
  Bytes bytes(PHUB_PACKET_BYTES + 4u * packet.count);
  for (std::size_t i = PHUB_PACKET_BYTES; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i);
  packet.payload_sum = phub_payload_sum(bytes.data() + PHUB_PACKET_BYTES, packet.count);
  phub_packet_encode(&packet, &lease.key, bytes.data());
  return bytes;
}

struct Attack {
  const char* reason;
  Bytes bytes;
};

std::vector<Attack> Attacks(const phub_lease& lease) {
  const auto plain = [](phub_packet&) {};
  Bytes truncated = Packet(lease, plain), foreign = truncated, forged = truncated,
        longer = truncated, corrupt = truncated, half = truncated;
  truncated.resize(10);
  half.resize(PHUB_PACKET_BYTES + 7);
  foreign[0] ^= 1;
  forged[24] ^= 1;
  longer.push_back(0);
  corrupt.back() ^= 1;
  return {
      {"truncated", Bytes{}},
      {"truncated", truncated},
      {"truncated", half},
      {"foreign", foreign},
      {"wrong_kind", Packet(lease, [](auto& packet) { packet.kind = PHUB_PACKET_SUM; })},
      {"wrong_kind", Packet(lease, [](auto& packet) { packet.kind = 200; })},
      {"wrong_lease", Packet(lease, [](auto& packet) { packet.lease += 1000; })},
      {"wrong_lease", Packet(lease, [](auto& packet) { packet.lease = 0; })},
      {"wrong_worker", Packet(lease, [](auto& packet) { packet.worker = 63; })},
      {"wrong_worker", Packet(lease, [](auto& packet) { packet.worker = 255; })},
      {"wrong_source", Packet(lease, [](auto& packet) { packet.worker = 1; })},
      // From the address of a worker, a NACK is not the core loop's.
      {"wrong_source", Packet(lease,
                              [](auto& packet) {
                                packet.kind = PHUB_PACKET_NACK;
                                packet.worker = PHUB_EVERY_WORKER;
                                packet.count = 0;
                              })},
      {"forged", forged},
      {"wrong_slot", Packet(lease, [&](auto& packet) { packet.slot = 60000; })},
      {"oversized", Packet(lease, [](auto& packet) { packet.count = 351; })},
      {"oversized", longer},
      {"corrupt", corrupt},
  };
}

TEST(Sums, HostilePacketsAreCountedAndHarmless) {
  AggregatorProcess aggregator;
  const SumShape shape{.iterations = 10, .trouble = kBadNetwork, .seed = 3};
  SumJob job(shape, aggregator);
  job.Open();
  ASSERT_TRUE(StepUntil({&job}, [&] { return job.complete() >= 10; }));
  std::map<std::string, std::uint64_t> expected;
  aggregation::DatagramSocket stranger = LocalSocket();
  for (const Attack& attack : Attacks(job.lease())) {
    job.relay(0).Inject(attack.bytes);
    ++expected[attack.reason];
    job.Step();
  }
  // What worker 0 has sent so far: replayed by a stranger, and from the worker's own address.
  const std::vector<Bytes> recorded = job.relay(0).recorded();
  ASSERT_GT(recorded.size(), 20u);
  for (const Bytes& bytes : recorded) {
    stranger.Queue(aggregator.endpoint(), bytes, {});
    stranger.Flush();
    ++expected["wrong_source"];
    job.relay(0).Inject(bytes);
    job.Step();
  }
  for (const auto& [reason, count] : expected)
    EXPECT_TRUE(Grows(aggregator, "dropped_total/" + reason, 0, count));
  EXPECT_GT(aggregator.Counter("verdicts_total/phase"), 0u) << "old packets";
  ASSERT_TRUE(StepUntil({&job}, [&] { return job.done(); }));
  ExpectRight(job);
  // Under the next lease of the same job, packets of this one are strange.
  EXPECT_TRUE(aggregator.End(job.lease().number));
  SumJob next(shape, aggregator);
  next.Open();
  const std::uint64_t before = aggregator.Counter("dropped_total/wrong_lease");
  for (const Bytes& bytes : recorded) next.relay(0).Inject(bytes);
  EXPECT_TRUE(Grows(aggregator, "dropped_total/wrong_lease", before, recorded.size()));
  ASSERT_TRUE(StepUntil({&next}, [&] { return next.done(); }));
  ExpectRight(next);
}

v1::GrantLeaseRequest SomeRequest(const std::string& tenant) {
  v1::GrantLeaseRequest request;
  request.set_tenant(tenant);
  request.set_slot_count(100);
  request.set_count_max(350);
  request.set_keep_alive_ms(600'000);
  request.set_core_loop("127.0.0.1:9");
  request.add_workers("127.0.0.1:10");
  return request;
}

TEST(Leases, HaveSharesOfThePoolAndEndWithoutRenewal) {
  AggregatorProcess aggregator({"--pool", "400KiB", "--tenant-pool", "200KiB"});
  v1::GrantLeaseResponse first, other, later;
  ASSERT_TRUE(aggregator.Grant(SomeRequest("a"), first).ok());
  EXPECT_EQ(first.key().size(), 16u);
  const grpc::Status full = aggregator.Grant(SomeRequest("a"), other);
  EXPECT_EQ(full.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(full.error_message(), HasSubstr("--tenant-pool"));
  ASSERT_TRUE(aggregator.Grant(SomeRequest("b"), other).ok());
  EXPECT_NE(other.key(), first.key());
  const grpc::Status pool = aggregator.Grant(SomeRequest("c"), later);
  EXPECT_EQ(pool.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(pool.error_message(), HasSubstr("--pool"));
  EXPECT_TRUE(aggregator.End(first.number()));
  EXPECT_FALSE(aggregator.End(first.number()));
  EXPECT_FALSE(aggregator.Renew(first.number()));
  EXPECT_TRUE(aggregator.Renew(other.number()));

  v1::GrantLeaseRequest brief = SomeRequest("a");
  brief.set_keep_alive_ms(100);
  ASSERT_TRUE(aggregator.Grant(brief, later).ok());
  EXPECT_GT(later.number(), other.number());
  EXPECT_TRUE(Grows(aggregator, "leases_total/expired", 0, 1));
  EXPECT_FALSE(aggregator.Renew(later.number()));
  EXPECT_EQ(aggregator.List().leases_size(), 1);
}

TEST(Leases, RefusesRequestsThatAreNotValid) {
  AggregatorProcess aggregator;
  const auto refused = [&](const char* text, const std::function<void(v1::GrantLeaseRequest&)>& f) {
    v1::GrantLeaseRequest request = SomeRequest("a");
    f(request);
    v1::GrantLeaseResponse response;
    const grpc::Status status = aggregator.Grant(request, response);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << text;
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  };
  refused("tenant", [](auto& request) { request.clear_tenant(); });
  refused("0 workers", [](auto& request) { request.clear_workers(); });
  refused("not a numeric address", [](auto& request) { request.add_workers("host:1"); });
  refused("not a numeric address", [](auto& request) { request.set_core_loop("10.0.0.1"); });
  refused("same address", [](auto& request) { request.add_workers("127.0.0.1:10"); });
  refused("port 0", [](auto& request) { request.add_workers("127.0.0.1:0"); });
  refused("slot_count=65537", [](auto& request) { request.set_slot_count(65537); });
  refused("count_max=849", [](auto& request) { request.set_count_max(849); });
  refused("keep_alive_ms=99", [](auto& request) { request.set_keep_alive_ms(99); });
  refused("65 workers", [](auto& request) {
    for (int i = 1; i < 65; ++i) request.add_workers("127.0.0.1:" + std::to_string(10 + i));
  });
  EXPECT_EQ(aggregator.List().leases_size(), 0);
}

TEST(AggregatorProgram, ServesMetricsAndStopsAtASignal) {
  AggregatorProcess aggregator;
  aggregation::DatagramSocket stranger = LocalSocket();
  const Bytes bytes(100);
  stranger.Queue(aggregator.endpoint(), bytes, {});
  stranger.Flush();
  EXPECT_TRUE(Grows(aggregator, "dropped_total/foreign", 0, 1));
  const auto answer = testing::GetMetrics(aggregator.metrics_port());
  EXPECT_EQ(answer.code, 200);
  const auto page = testing::ReadPrometheusText(answer.body);
  EXPECT_THAT(page.problems, IsEmpty());
  EXPECT_EQ(page.Sum("phub_aggregator_dropped_total", {{"reason", "foreign"}}), 1);
  EXPECT_EQ(page.Sum("phub_aggregator_received_bytes_total", {}), 100);
  EXPECT_EQ(page.Sum("phub_aggregator_pool_bytes", {}), 64 << 20);
  aggregator.process().Signal(SIGTERM);
  EXPECT_EQ(aggregator.process().Wait(kStartPatience), Exit::WithCode(0));
}

TEST(AggregatorProgram, RefusesWrongOptions) {
  const auto run = [](std::vector<std::string> arguments) {
    return RunToEnd(kAggregator, arguments);
  };
  const auto refused = [&](std::vector<std::string> arguments, const char* text) {
    const Finished finished = run(std::move(arguments));
    EXPECT_EQ(finished.exit, Exit::WithCode(2)) << text;
    EXPECT_THAT(finished.error, HasSubstr(text));
  };
  refused({}, "--listen is required");
  refused({"--listen", "127.0.0.1:0", "--nonsense"}, "--nonsense");
  refused({"--listen", "localhost:0"}, "not a numeric address");
  refused({"--listen", "0.0.0.0:0"}, "one address of this host");
  refused({"--listen", "127.0.0.1:0", "--pool", "much"}, "is not a size");
  refused({"--listen", "127.0.0.1:0", "--log-level", "loud"}, "is not a level");
  const TemporaryFolder folder;
  const std::string file = folder.Write("data", "of somebody");
  refused({"--listen", "127.0.0.1:0", "--control", file}, "is not a socket");
  EXPECT_EQ(run({"--listen", "203.0.113.1:1", "--control", folder.path() + "/c"}).exit,
            Exit::WithCode(1));
  const Finished help = run({"--help"});
  EXPECT_EQ(help.exit, Exit::WithCode(0));
  EXPECT_THAT(help.output, HasSubstr("phub-aggregator --listen 10.0.0.9:7701"));
}

}  // namespace
}  // namespace phub::process
