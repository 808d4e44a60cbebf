// A job whose datagrams pass a bad network of real interfaces on the way to the aggregator and
// back: the bits are those of tcp. bench-lossy-box drops, repeats, reorders and delays them. Needs
// the rights to create namespaces and to load programs. PHUB_TEST_LONG=1: 100,000 sums for each
// kind of bad network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/sum_streams_fixture.h"
#include "tests/process/two_networks.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kChunkBytes = 64 << 10;  // 46 blocks of 350 integers, and one of 284
constexpr const char* kTroubles[] = {"lost", "repeated", "repeated-late", "reordered", "delayed"};

struct BadNetwork {
  const char* name;
  double percent[std::size(kTroubles)];  // in both directions
};
constexpr BadNetwork kWorst{"all, 10 % lost", {10, 5, 5, 2, 2}};
constexpr BadNetwork kBadNetworks[] = {
    {"lost", {1, 0, 0, 0, 0}},          {"repeated", {0, 1, 0, 0, 0}},
    {"repeated late", {0, 0, 1, 0, 0}}, {"reordered", {0, 0, 0, 1, 0}},
    {"delayed", {0, 0, 0, 0, 1}},       {"lost and repeated late", {1, 0, 1, 0, 0}},
    {"all", {1, 1, 1, 1, 1}},           kWorst};

bool IsLongRun() { return std::getenv("PHUB_TEST_LONG") != nullptr; }

class SumBox : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string problem = networks_.ProblemWithPrograms(); !problem.empty())
      GTEST_SKIP() << problem;
  }
  Process StartBox(const BadNetwork& network) const {
    std::vector<std::string> arguments{"--link", TwoNetworks::kBoxLink, "--port", "7701"};
    for (std::size_t i = 0; i < std::size(kTroubles); ++i) {
      for (const char* direction : {"--up-", "--down-"}) {
        arguments.push_back(std::string(direction) + kTroubles[i]);
        arguments.push_back(std::to_string(network.percent[i]));
      }
    }
    Process box = networks_.StartInBox(PHUB_TEST_BOX, arguments);
    EXPECT_TRUE(box.WaitForOutput("event=box_ready", kStartPatience)) << box.Outputs();
    return box;
  }
  // Ends the box, which must have made all the trouble that was asked for.
  static void ExpectTrouble(Process& box, const BadNetwork& network, std::uint64_t sums) {
    box.Signal(SIGTERM);
    ASSERT_EQ(box.Wait(kStartPatience), Exit::WithCode(0)) << box.Outputs();
    const auto link = nlohmann::json::parse(box.StandardOutput())["links"][0];
    for (const char* direction : {"up", "down"}) {
      const auto& counters = link[direction];
      EXPECT_GT(counters["seen"].get<std::uint64_t>(), sums);
      EXPECT_EQ(counters["joined"].get<std::uint64_t>(), 0u) << "packets are not those of a wire";
      for (std::size_t i = 0; i < std::size(kTroubles); ++i) {
        const bool wanted = network.percent[i] != 0;
        std::string name = kTroubles[i];
        if (name == "repeated-late") name = "repeated_late";
        EXPECT_EQ(counters[name].get<std::uint64_t>() > 0, wanted) << name << ", " << direction;
      }
    }
    const auto payloads = link["up"]["kinds"]["payload"]["packets"].get<std::uint64_t>();
    EXPECT_GE(payloads, sums * kRanks);
    std::printf("%s: %llu sums, %llu payloads. %s", network.name,
                static_cast<unsigned long long>(sums), static_cast<unsigned long long>(payloads),
                box.StandardOutput().c_str());
  }

  // Trains until the aggregator has sent `sums` sums, and compares with tcp after each iteration.
  void ExpectExact(const BadNetwork& network, const std::vector<std::string>& arguments,
                   std::uint64_t elements, std::uint64_t sums) {
    Process box = StartBox(network);
    AggregatorProcess aggregator(
        std::string(TwoNetworks::kItsAddress) + ":7701", arguments,
        [this](const std::string& program, const std::vector<std::string>& all) {
          return networks_.StartInOther(program, all);
        });
    const std::string address = TwoNetworks::kDataAddress;
    DaemonProcess daemon({"--cores", "2", "--pin", "off", "--listen", address + ":0", "--insecure",
                          "--sum-listen", address, "--sum-aggregator", aggregator.control()});
    DaemonProcess plain({"--cores", "1", "--pin", "off"});
    ASSERT_FALSE(daemon.endpoint().empty()) << daemon.process().Outputs();
    const std::string endpoint = address + daemon.endpoint().substr(daemon.endpoint().rfind(':'));
    JobOptions options = Options("job");
    options.chunk_bytes = kChunkBytes;
    Training expected(plain.endpoint(), options, {elements});
    Training job(endpoint, options, {elements});
    const auto sent = [&] { return aggregator.Counter("verdicts_total/add_last"); };
    for (int iteration = 0; sent() < sums; ++iteration) {
      ASSERT_LT(iteration, 1000) << "only " << sent() << " sums have come from the aggregator";
      job.Train(1);
      expected.Train(1);
      for (std::size_t rank = 0; rank < kRanks; ++rank)
        ASSERT_EQ(job.Parameters(rank), expected.Parameters(rank))
            << network.name << ", iteration " << iteration << ", rank " << rank;
    }
    if (!arguments.empty()) {
      EXPECT_GT(aggregator.Counter("kernel_sums_sent_total"), 0u);
    }
    ExpectTrouble(box, network, sent());
  }
  void ExpectExactInAll(const std::vector<std::string>& arguments) {
    if (!IsLongRun()) return ExpectExact(kWorst, arguments, 50'000, 600);
    for (const BadNetwork& network : kBadNetworks)
      ASSERT_NO_FATAL_FAILURE(ExpectExact(network, arguments, 1'000'000, 100'000));
  }
  TwoNetworks networks_{/*with_box=*/true};
};

TEST_F(SumBox, SumsInTheProcessHaveTheBitsOfTcp) { ExpectExactInAll({}); }

TEST_F(SumBox, SumsInTheKernelHaveTheBitsOfTcp) {
  ExpectExactInAll({"--xdp", TwoNetworks::kItsInterface});
}

}  // namespace
}  // namespace phub::process
