// bench-wire: contributions to an aggregator as from a wire, and what they cost. See --help.
//
//   hold  attaches one of the smallest programs to an interface, until a signal
//   send  sends contributions, and prints CPU times as one line of JSON
#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/box/held_packets.h"
#include "bench/rank/build_info.h"
#include "bench/wire/load.h"
#include "common/base/descriptor.h"
#include "phub/v1/aggregator.grpc.pb.h"

namespace {

using namespace phub;
using namespace phub::bench;

constexpr std::size_t kHeaders = 42;   // Ethernet, IPv4, UDP
constexpr std::uint16_t kPort = 7702;  // of everybody
constexpr std::uint32_t kSlots = 1024;
constexpr std::chrono::seconds kPatience{20};
constexpr std::uint32_t kKeepAliveMs = 600'000;

struct Options {
  std::string interface;
  std::string program;  // of hold; of send: the one to measure
  std::string control;  // empty: nobody adds
  std::string aggregator = "10.97.54.1";
  std::string core_loop = "10.97.54.2";
  std::string first_worker = "10.97.54.10";
  std::uint32_t workers = 4;
  std::uint32_t count = 350;
  std::uint32_t packets = 100'000;
  std::uint32_t warmup = 8192;
  std::uint32_t burst = 512;
  int cpu = 0;
  std::vector<int> pids;
};

void Require(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}
template <typename T>
T Required(absl::StatusOr<T> result) {
  Require(result.status());
  return *std::move(result);
}

std::uint32_t AddressOf(const std::string& text) {
  in_addr address{};
  if (inet_pton(AF_INET, text.c_str(), &address) != 1)
    throw std::runtime_error(text + " is not an address of IPv4");
  return address.s_addr;
}

std::string Numbered(const std::string& first, std::uint32_t number) {
  const in_addr address{htonl(ntohl(AddressOf(first)) + number)};
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &address, text.data(), text.size());
  return std::string(text.data()) + ":" + std::to_string(kPort);
}

// The aggregator's control socket.
class Control {
 public:
  explicit Control(const std::string& path)
      : stub_(v1::Aggregator::NewStub(
            grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials()))) {}
  v1::GrantLeaseResponse Grant(const Options& options) {
    v1::GrantLeaseRequest request;
    request.set_tenant("bench");
    request.set_slot_count(kSlots);
    request.set_count_max(options.count);
    request.set_keep_alive_ms(kKeepAliveMs);
    request.set_core_loop(Numbered(options.core_loop, 0));
    for (std::uint32_t i = 0; i < options.workers; ++i)
      request.add_workers(Numbered(options.first_worker, i));
    v1::GrantLeaseResponse response;
    grpc::ClientContext context;
    Check(stub_->Grant(&context, request, &response));
    return response;
  }
  std::uint64_t Sums() {
    v1::ListLeasesResponse response;
    grpc::ClientContext context;
    Check(stub_->List(&context, {}, &response));
    std::uint64_t sums = 0;
    for (const auto& lease : response.leases()) sums += lease.sums();
    return sums;
  }

 private:
  static void Check(const grpc::Status& status) {
    if (!status.ok()) throw std::runtime_error("the aggregator: " + status.error_message());
  }
  std::unique_ptr<v1::Aggregator::Stub> stub_;
};

// Nanoseconds of CPU of all threads of these processes.
std::uint64_t CpuOf(const std::vector<int>& pids) {
  std::uint64_t total = 0;
  for (const int pid : pids) {
    for (const auto& task :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
      std::ifstream file(task.path() / "schedstat");
      std::uint64_t ns = 0;
      file >> ns;
      total += ns;
    }
  }
  return total;
}

std::uint64_t OwnCpu() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

class Sender {
 public:
  explicit Sender(const Options& options)
      : options_(options), load_(Required(WireLoad::Open({"contribute", "send"}))) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(static_cast<unsigned>(options.cpu), &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    settings_.interface = if_nametoindex(options.interface.c_str());
    settings_.workers = options.workers;
    settings_.slots = kSlots;
    settings_.count = options.count;
    settings_.aggregator = AddressOf(options.aggregator);
    settings_.first_worker = AddressOf(options.first_worker);
    settings_.aggregator_port = settings_.worker_port = htons(kPort);
    if (!options.control.empty()) {
      control_ = std::make_unique<Control>(options.control);
      const v1::GrantLeaseResponse lease = control_->Grant(options);
      settings_.lease = lease.number();
      std::memcpy(settings_.key.words, lease.key().data(), sizeof settings_.key.words);
    }
    Require(load_->Configure(settings_));
  }

  // Prints the result.
  void Run() {
    if (control_) SendNack();
    Send(options_.warmup);
    Await();
    const Descriptor measures(options_.program.empty() ? -1 : MeasurePrograms());
    const ProgramTime before = Program();
    const std::uint64_t own = OwnCpu();
    const std::uint64_t others = CpuOf(options_.pids);
    Send(options_.packets);
    const std::uint64_t own_ns = OwnCpu() - own;
    Await();
    const std::uint64_t others_ns = CpuOf(options_.pids) - others;
    const ProgramTime after = Program();
    std::printf(R"({"packets":%u,"sums":%llu,"sender_ns":%llu,"others_ns":%llu,"program_ns":%llu,)"
                R"("program_runs":%llu})"
                "\n",
                options_.packets, static_cast<unsigned long long>(control_ ? control_->Sums() : 0),
                static_cast<unsigned long long>(own_ns), static_cast<unsigned long long>(others_ns),
                static_cast<unsigned long long>(after.ns - before.ns),
                static_cast<unsigned long long>(after.runs - before.runs));
  }

 private:
  ProgramTime Program() const {
    return options_.program.empty() ? ProgramTime{} : Required(TimeOf(options_.program));
  }
  void Send(std::uint32_t packets) {
    for (std::uint32_t left = packets; left > 0;) {
      const std::uint32_t now = std::min(left, options_.burst);
      Require(load_->Run("contribute", frame_, now));
      left -= now;
      sent_ += now;
      // The aggregator may run on the same CPU.
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  // Nothing may be lost, or phases would not advance.
  void Await() {
    if (!control_) return;
    const std::uint64_t wanted = sent_ / options_.workers;
    const auto give_up = std::chrono::steady_clock::now() + kPatience;
    while (control_->Sums() < wanted) {
      if (std::chrono::steady_clock::now() > give_up)
        throw std::runtime_error("the aggregator has sent " + std::to_string(control_->Sums()) +
                                 " sums of " + std::to_string(wanted));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  // From this packet, the program in the kernel learns the way to the core loop.
  void SendNack() {
    std::vector<std::uint8_t> frame(kHeaders + PHUB_PACKET_BYTES);
    const phub_packet nack{.lease = settings_.lease,
                           .phase = 0,
                           .payload_sum = 0,
                           .slot = 0,
                           .count = 0,
                           .kind = PHUB_PACKET_NACK,
                           .worker = PHUB_EVERY_WORKER,
                           .exponent = 0,
                           .next_exponent = 0};
    phub_packet_encode(&nack, &settings_.key, frame.data() + kHeaders);
    std::memset(frame.data(), 2, 6);
    std::memset(frame.data() + 6, 4, 6);
    const auto put16 = [&](std::size_t at, std::size_t value) {
      frame[at] = static_cast<std::uint8_t>(value >> 8);
      frame[at + 1] = static_cast<std::uint8_t>(value);
    };
    put16(12, 0x0800);
    put16(14, 0x4500);
    put16(16, frame.size() - 14);
    put16(22, 64 << 8 | IPPROTO_UDP);
    const std::uint32_t addresses[] = {AddressOf(options_.core_loop), settings_.aggregator};
    std::memcpy(frame.data() + 26, addresses, sizeof addresses);
    std::uint32_t sum = 0;
    for (std::size_t at = 14; at < 34; at += 2)
      sum += static_cast<std::uint32_t>(frame[at] << 8 | frame[at + 1]);
    sum = (sum & 0xffff) + (sum >> 16);
    put16(24, ~((sum & 0xffff) + (sum >> 16)) & 0xffff);
    put16(34, kPort);
    put16(36, kPort);
    put16(38, frame.size() - 34);
    put16(40, 1);  // any: there is a checksum
    FillChecksum(frame);
    Require(load_->Run("send", frame, 1));
  }

  const Options& options_;
  std::unique_ptr<WireLoad> load_;
  phub_wire_load settings_{};
  std::unique_ptr<Control> control_;
  std::vector<std::uint8_t> frame_ =
      std::vector<std::uint8_t>(kHeaders + PHUB_PACKET_BYTES + 4 * options_.count);
  std::uint64_t sent_ = 0;
};

void Hold(const Options& options) {
  sigset_t ends{};
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  const auto load = Required(WireLoad::Open({options.program}));
  Require(load->Attach(options.program, options.interface));
  std::fputs("event=held\n", stderr);
  int number = 0;
  sigwait(&ends, &number);
}

void AddOptions(CLI::App& hold, CLI::App& send, Options& options) {
  for (CLI::App* app : {&hold, &send})
    app->add_option("--interface", options.interface, "an interface of this network namespace")
        ->required();
  hold.add_option("--program", options.program,
                  "empty or sink: drops all packets; pass: leaves them to the network stack")
      ->required()
      ->check(CLI::IsMember({"empty", "sink", "pass"}));
  send.add_option("--program", options.program,
                  "name of a program in the kernel whose run time is measured, too, which costs "
                  "CPU (default: none)");
  send.add_option("--control", options.control,
                  "the aggregator's control socket (default: packets have no lease)");
  send.add_option("--aggregator", options.aggregator, "its address (default 10.97.54.1)");
  send.add_option("--core-loop", options.core_loop, "where sums go (default 10.97.54.2)");
  send.add_option("--first-worker", options.first_worker,
                  "the first worker's address (default 10.97.54.10)");
  send.add_option("--workers", options.workers, "number of workers (default 4)")
      ->check(CLI::Range(1, 64));
  send.add_option("--count", options.count, "integers of a packet (default 350)")
      ->check(CLI::Range(1, 848));
  send.add_option("--packets", options.packets, "packets that are measured (default 100000)");
  send.add_option("--warmup", options.warmup, "packets before them (default 8192)");
  send.add_option("--burst", options.burst, "packets between two pauses (default 512)")
      ->check(CLI::Range(1, 100'000));
  send.add_option("--cpu", options.cpu, "the CPU to run on (default 0)");
  send.add_option("--pids", options.pids, "other processes whose CPU time counts")->delimiter(',');
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--build-info") return PrintBuildInfo();
  CLI::App app("Send contributions to an aggregator as from a wire, and measure CPU time.");
  app.require_subcommand(1);
  CLI::App* const hold = app.add_subcommand("hold", "attach a program to an interface");
  CLI::App* const send = app.add_subcommand("send", "send contributions");
  Options options;
  AddOptions(*hold, *send, options);
  CLI11_PARSE(app, argc, argv);
  try {
    if (hold->parsed()) {
      Hold(options);
    } else {
      Sender(options).Run();
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench-wire: %s\n", error.what());
    return 1;
  }
  return 0;
}
