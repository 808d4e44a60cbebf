// Streams of sums next to each other, and under attack: strangers send datagrams to the ports of
// phubd and of the workers, also recorded ones from the aggregator's own address.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "common/aggregation/datagram_socket.h"
#include "common/base/descriptor.h"
#include "tests/process/sum_streams_fixture.h"

namespace phub::process {
namespace {

using Bytes = std::vector<std::uint8_t>;

// The UDP ports that a process has bound, from /proc.
std::set<std::uint16_t> UdpPortsOf(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  std::set<std::string> inodes;
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::set<std::uint16_t> ports;
  std::ifstream table(process + "/net/udp");
  std::string line;
  std::getline(table, line);  // column names
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::vector<std::string> columns;
    for (std::string column; fields >> column;) columns.push_back(column);
    const std::string& local = columns.at(1);  // "0100007F:8B5A"
    if (inodes.contains(columns.at(9)))
      ports.insert(static_cast<std::uint16_t>(std::stoul(local.substr(9), nullptr, 16)));
  }
  return ports;
}

// Records the datagrams on this host to some ports, whole with their IP headers. Needs root.
class Recorder {
 public:
  explicit Recorder(std::set<std::uint16_t> ports)
      : ports_(std::move(ports)), socket_(socket(AF_INET, SOCK_RAW, IPPROTO_UDP)) {
    const int bytes = 8 << 20;
    (void)setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes));
  }
  bool works() const { return socket_.get() >= 0; }
  std::vector<Bytes> Take() {
    std::vector<Bytes> taken;
    std::array<std::uint8_t, 65536> buffer;
    for (;;) {
      const ssize_t count = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (count <= 0) return taken;
      const std::size_t header = 4u * (buffer[0] & 15u);
      udphdr udp;
      std::memcpy(&udp, buffer.data() + header, sizeof(udp));
      if (ports_.contains(ntohs(udp.dest)))
        taken.emplace_back(buffer.begin(), buffer.begin() + count);
    }
  }

 private:
  const std::set<std::uint16_t> ports_;
  Descriptor socket_;
};

// Sends a recorded datagram again, from the address that it came from.
void SendAgain(const Descriptor& raw, Bytes bytes) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  std::memcpy(&to.sin_addr, bytes.data() + offsetof(iphdr, daddr), sizeof(to.sin_addr));
  ASSERT_EQ(sendto(raw.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&to),
                   sizeof(to)),
            static_cast<ssize_t>(bytes.size()))
      << std::strerror(errno);
}

// Random bytes, empty and long datagrams, and such that begin like phub's.
std::vector<Bytes> Garbage() {
  std::mt19937 random(7);
  std::vector<Bytes> all = {{}, Bytes(1), Bytes(31), Bytes(32), Bytes(60'000, 0xff)};
  for (int i = 0; i < 200; ++i) {
    Bytes bytes(random() % 1500);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    if (i % 2 == 0 && bytes.size() > 4) {
      bytes[0] = 0x50, bytes[1] = 0x53, bytes[2] = 1;
      bytes[3] = static_cast<std::uint8_t>(1 + random() % 8);
    }
    all.push_back(std::move(bytes));
  }
  return all;
}

void SendTo(const std::set<std::uint16_t>& ports, const Bytes& bytes) {
  const Descriptor stranger(socket(AF_INET, SOCK_DGRAM, 0));
  for (const std::uint16_t port : ports) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(sendto(stranger.get(), bytes.data(), bytes.size(), 0,
                     reinterpret_cast<sockaddr*>(&to), sizeof(to)),
              static_cast<ssize_t>(bytes.size()));
  }
}

class SumStreamsOfSeveral : public SumStreams {
 protected:
  // A job, and the same one over tcp, in turns.
  struct Pair {
    Pair(SumStreamsOfSeveral& test, const std::string& name)
        : expected(test.plain_.endpoint(), Options(name)),
          job(test.daemon_.endpoint(), Options(name)) {
      test.AwaitStreams(name);
    }
    void Train(int iterations) {
      ASSERT_NO_FATAL_FAILURE(job.Train(iterations));
      ASSERT_NO_FATAL_FAILURE(expected.Train(iterations));
      for (std::size_t rank = 0; rank < kRanks; ++rank)
        ASSERT_EQ(job.Parameters(rank), expected.Parameters(rank)) << "rank " << rank;
    }
    Training expected, job;
  };
};

TEST_F(SumStreamsOfSeveral, JobsShareAnAggregator) {
  Pair first(*this, "first"), second(*this, "second");
  // Each job has a stream on each of the two core loops.
  EXPECT_EQ(aggregator_.List().leases_size(), 4);
  std::thread other([&] { second.Train(30); });
  first.Train(30);
  other.join();
  EXPECT_EQ(Stat("phub_sum_block_bytes_total"), 2 * 30 * kElements * sizeof(float));
  EXPECT_EQ(Stat("phub_gradient_bytes_total"), 0u);
  // Both lose it at once, in the middle of a round.
  aggregator_.process().Signal(SIGSTOP);
  first.job.Begin();
  second.job.Begin();
  Sleep(100 * kMillisecond);
  aggregator_.process().Signal(SIGKILL);
  first.job.End();
  second.job.End();
  first.expected.Train(1);
  second.expected.Train(1);
  first.Train(2);
  second.Train(2);
  aggregator_.Restart();
  AwaitStreams("second");
  second.Train(5);
  first.Train(5);
}

TEST_F(SumStreamsOfSeveral, StrangersDatagramsAreCountedAndHarmless) {
  Pair pair(*this, "attacked");
  pair.Train(2);
  const std::set<std::uint16_t> daemon = UdpPortsOf(daemon_.process().pid());
  const std::set<std::uint16_t> workers = UdpPortsOf(getpid());
  ASSERT_EQ(daemon.size(), 2u) << "one for each core loop";
  ASSERT_EQ(workers.size(), 2 * kRanks);
  const std::vector<Bytes> garbage = Garbage();
  std::atomic<bool> stops{false};
  std::thread flood([&] {
    for (std::size_t i = 0; !stops.load(); ++i) {
      SendTo(daemon, garbage[i % garbage.size()]);
      SendTo(workers, garbage[i % garbage.size()]);
    }
  });
  pair.Train(10);
  stops = true;
  flood.join();
  EXPECT_GT(Stat("phub_sum_datagrams_refused_total"), 0u);

  Recorder recorder = [&] {
    std::set<std::uint16_t> both = daemon;
    both.insert(workers.begin(), workers.end());
    return Recorder(both);
  }();
  if (!recorder.works()) return;  // not root
  pair.Train(3);
  const std::vector<Bytes> recorded = recorder.Take();
  ASSERT_GE(recorded.size(), 3 * 9u) << "the sums, at least";
  const Descriptor raw(socket(AF_INET, SOCK_RAW, IPPROTO_RAW));
  // Old packets at once, next to new ones, and damaged in one byte each.
  std::size_t damaged = 0;
  for (const Bytes& bytes : recorded) {
    SendAgain(raw, bytes);
    Bytes changed = bytes;
    changed[sizeof(iphdr) + sizeof(udphdr) + damaged++ % (bytes.size() - 28)] ^= 0x10;
    std::memset(changed.data() + sizeof(iphdr) + offsetof(udphdr, check), 0, 2);  // not computed
    SendAgain(raw, changed);
    if (damaged % 20 == 0) pair.Train(1);
  }
  pair.Train(5);
  EXPECT_EQ(Stat("phub_jobs_failed_total"), 0u);
}

}  // namespace
}  // namespace phub::process
