// bench-wake-floor: the waiting of an exchange without its data. Each worker is a process. It
// notifies a server and waits; after all workers have arrived, the server notifies each of them. An
// exchange through a central server cannot be faster than this with the same way to wait:
//   eventfd  everyone blocks: two wake-ups
//   yield    no one blocks: everyone polls shared memory and yields the core
//   tcp      everyone blocks, and the tensor's bytes pass the loopback, there and back
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/rank/arguments.h"
#include "bench/rank/build_info.h"
#include "bench/rank/recorder.h"

namespace {

using namespace phub::bench;

struct Options {
  std::uint32_t world = 4;
  std::uint64_t bytes = 4096;
  std::uint32_t exchanges = 1000;
  std::uint32_t warmup = 10;
  std::string via = "eventfd";
  std::string out;
};

void Require(bool good, const char* call) {
  if (!good) Fail(std::string(call) + " failed");
}

void ReadAll(int descriptor, std::vector<char>& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = read(descriptor, bytes.data() + done, bytes.size() - done);
    if (count <= 0) Fail("cannot read from the other end");
    done += static_cast<std::size_t>(count);
  }
}

void WriteAll(int descriptor, const std::vector<char>& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(descriptor, bytes.data() + done, bytes.size() - done);
    if (count <= 0) Fail("cannot write to the other end");
    done += static_cast<std::size_t>(count);
  }
}

// The two ends of a connection between one worker and the server. Each end writes to one descriptor
// and reads from another.
struct Lane {
  int server_reads = -1, server_writes = -1;
  int worker_reads = -1, worker_writes = -1;
};

Lane EventLane() {
  Lane lane;
  lane.server_reads = lane.worker_writes = eventfd(0, EFD_CLOEXEC);
  lane.worker_reads = lane.server_writes = eventfd(0, EFD_CLOEXEC);
  Require(lane.server_reads >= 0 && lane.worker_reads >= 0, "eventfd");
  return lane;
}

Lane TcpLane(int listener, const sockaddr_in& address) {
  const int worker = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Require(worker >= 0, "socket");
  Require(connect(worker, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
          "connect");
  const int server = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  Require(server >= 0, "accept");
  for (const int end : {worker, server}) {
    const int on = 1;
    Require(setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "setsockopt");
  }
  return {.server_reads = server,
          .server_writes = server,
          .worker_reads = worker,
          .worker_writes = worker};
}

std::vector<Lane> MakeLanes(const Options& options) {
  std::vector<Lane> lanes;
  if (options.via == "eventfd") {
    for (std::uint32_t i = 0; i < options.world; ++i) lanes.push_back(EventLane());
    return lanes;
  }
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  Require(bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0, "bind");
  Require(listen(listener, 128) == 0, "listen");
  Require(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0,
          "getsockname");
  for (std::uint32_t i = 0; i < options.world; ++i) lanes.push_back(TcpLane(listener, address));
  close(listener);
  return lanes;
}

// An eventfd message is the number 1, in 8 bytes.
std::vector<char> MessageOf(const Options& options) {
  if (options.via == "tcp") return std::vector<char>(options.bytes, 1);
  std::vector<char> one(8, 0);
  one[0] = 1;
  return one;
}

// How a worker and the server, each in its own process, notify each other. Rounds count from 1.
class Meeting {
 public:
  virtual ~Meeting() = default;
  // Returns after the server's notification.
  virtual void Attend(std::uint32_t worker, std::uint32_t round) = 0;
  virtual void Serve(std::uint32_t round) = 0;  // waits for all workers, then notifies all
};

class LaneMeeting : public Meeting {
 public:
  explicit LaneMeeting(const Options& options)
      : lanes_(MakeLanes(options)), message_(MessageOf(options)), read_(message_.size()) {}

  void Attend(std::uint32_t worker, std::uint32_t) override {
    WriteAll(lanes_[worker].worker_writes, message_);
    ReadAll(lanes_[worker].worker_reads, read_);
  }
  void Serve(std::uint32_t) override {
    for (const Lane& lane : lanes_) ReadAll(lane.server_reads, read_);
    for (const Lane& lane : lanes_) WriteAll(lane.server_writes, message_);
  }

 private:
  const std::vector<Lane> lanes_;
  const std::vector<char> message_;
  std::vector<char> read_;
};

class YieldMeeting : public Meeting {
 public:
  explicit YieldMeeting(const Options& options) : world_(options.world) {
    void* memory = mmap(nullptr, (world_ + 1) * sizeof(Round), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Require(memory != MAP_FAILED, "mmap");
    rounds_ = static_cast<Round*>(memory);  // initially zeros, and shared with the children
  }

  void Attend(std::uint32_t worker, std::uint32_t round) override {
    rounds_[worker].reached.store(round, std::memory_order_release);
    Await(rounds_[world_], round);
  }
  void Serve(std::uint32_t round) override {
    for (std::uint32_t i = 0; i < world_; ++i) Await(rounds_[i], round);
    rounds_[world_].reached.store(round, std::memory_order_release);
  }

 private:
  struct alignas(64) Round {
    std::atomic<std::uint32_t> reached;
  };
  static void Await(const Round& round, std::uint32_t number) {
    while (round.reached.load(std::memory_order_acquire) < number) sched_yield();
  }

  const std::uint32_t world_;
  Round* rounds_ = nullptr;  // one entry per worker, then the server's
};

int Run(const Options& options) {
  std::unique_ptr<Meeting> meeting;
  if (options.via == "yield") {
    meeting = std::make_unique<YieldMeeting>(options);
  } else {
    meeting = std::make_unique<LaneMeeting>(options);
  }
  const std::uint32_t rounds = options.warmup + options.exchanges;
  std::vector<pid_t> workers;
  for (std::uint32_t worker = 0; worker < options.world; ++worker) {
    const pid_t pid = fork();
    Require(pid >= 0, "fork");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (std::uint32_t round = 1; round <= rounds; ++round) meeting->Attend(worker, round);
      _exit(0);
    }
    workers.push_back(pid);
  }
  Recorder recorder(options.exchanges, {});
  for (std::uint32_t round = 1; round <= rounds; ++round) {
    meeting->Serve(round);
    if (round == options.warmup) recorder.Start();
    if (round > options.warmup) recorder.Stamp();
  }
  for (const pid_t pid : workers) {
    int status = 0;
    Require(waitpid(pid, &status, 0) == pid && status == 0, "a worker");
  }
  recorder.Finish();
  recorder.Write(options.out, 0, {{"via", options.via}});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--build-info") return PrintBuildInfo();
  CLI::App app("Measure the waiting of an exchange without its data.");
  Options options;
  app.add_option("--world", options.world, "number of workers")->check(CLI::Range(1u, 1024u));
  app.add_option("--bytes", options.bytes, "size of a message over tcp")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 20));
  app.add_option("--exchanges", options.exchanges, "number of timed exchanges");
  app.add_option("--warmup", options.warmup, "number of untimed exchanges before them")
      ->check(CLI::Range(1u, 1'000'000u));
  app.add_option("--via", options.via, "how workers and server notify each other")
      ->check(CLI::IsMember({"eventfd", "yield", "tcp"}));
  app.add_option("--out", options.out, "output file (JSON)")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return Run(options);
}
