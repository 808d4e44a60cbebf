// A job whose gradients a real phub-aggregator sums in the kernel, behind a real network interface:
// the bits are those of tcp. Workers and daemon are in one network namespace, the aggregator in
// another. Needs the rights to create namespaces and to load programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "common/base/descriptor.h"
#include "common/base/errno_text.h"
#include "tests/process/sum_streams_fixture.h"
#include "tests/process/two_networks.h"

namespace phub::process {
namespace {

using ::testing::HasSubstr;

constexpr const char* kOurInterface = "a2";
constexpr const char* kItsInterface = "b2";
constexpr const char* kItsAddress = "10.2.0.2";

// veth receives packets that a program redirects only with GRO or a program of its own.
bool TurnGroOn(const char* interface) {
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM, 0));
  ethtool_value value{.cmd = ETHTOOL_SGRO, .data = 1};
  ifreq request{};
  std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&value);
  return ioctl(socket.get(), SIOCETHTOOL, &request) == 0;
}

// 0 if this process may load programs, otherwise an errno.
int ProgramsRefused() {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_ARRAY;
  attributes.key_size = attributes.value_size = 4;
  attributes.max_entries = 1;
  const Descriptor map(
      static_cast<int>(syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes)));
  return map ? 0 : errno;
}

class SumXdp : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!networks_.problem().empty()) GTEST_SKIP() << networks_.problem();
    if (const int error = ProgramsRefused(); error != 0)
      GTEST_SKIP() << "bpf: " << ErrnoText(error);
    ASSERT_TRUE(TurnGroOn(kOurInterface));
  }
  TwoNetworks networks_;
};

TEST_F(SumXdp, HasTheBitsOfTcp) {
  AggregatorProcess aggregator(
      std::string(kItsAddress) + ":7701", {"--xdp", kItsInterface},
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
  const auto shown = [&] {
    return RunToEnd(kPhubctl, {"--endpoint", endpoint, "job", "get", "job"}).output;
  };
  std::string way = shown();
  for (int i = 0; i < 300 && way.find("tcp: ") != std::string::npos; ++i) {
    Sleep(100 * kMillisecond);
    way = shown();
  }
  ASSERT_THAT(way, HasSubstr("aggregator 10.2.0.2:7701"));
  job.Train(20);
  expected.Train(20);
  for (std::size_t rank = 0; rank < kRanks; ++rank)
    ASSERT_EQ(job.Parameters(rank), expected.Parameters(rank)) << "rank " << rank;
  // Expect: the program has added everything. It sends sums itself after the first TAKEN.
  const std::uint64_t sums = 20 * kBlocks;
  EXPECT_EQ(aggregator.Counter("verdicts_total/add_last"), sums);
  EXPECT_GE(aggregator.Counter("kernel_sums_sent_total"), sums / 2);
  EXPECT_EQ(aggregator.Counter("dropped_total/corrupt"), 0u);
  EXPECT_THAT(shown(), HasSubstr("aggregator 10.2.0.2:7701"));
}

}  // namespace
}  // namespace phub::process
