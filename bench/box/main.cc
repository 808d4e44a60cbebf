// bench-lossy-box: a bad network between pairs of interfaces, in its network namespace. See --help.
//
// --check: only loads the program, to see whether that is possible.
//
// Prints event=box_ready to standard error. Each line of standard input is answered by the counters
// as one line of JSON, and so is SIGTERM or SIGINT, which ends it.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/box/box.h"
#include "bench/box/held_packets.h"
#include "bench/rank/build_info.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace {

using namespace phub;
using namespace phub::bench;

constexpr std::uint32_t kUp = 0;
constexpr std::uint32_t kDown = 1;

struct Options {
  std::vector<std::string> links;
  std::map<std::string, double> percent;  // "up-lost", ...
  double reorder_us = 200;
  double delay_ms = 5;
  std::uint64_t seed = 1;
  std::uint16_t port = 0;
};

std::uint32_t Probability(double percent) {
  return static_cast<std::uint32_t>(std::llround(percent / 100 * 4294967295.0));
}

phub_box_settings SettingsOf(Options& options) {
  phub_box_settings settings{};
  settings.seed = options.seed;
  settings.port = static_cast<std::uint16_t>(options.port << 8 | options.port >> 8);
  for (const std::uint32_t direction : {kUp, kDown}) {
    const std::string prefix = direction == kUp ? "up-" : "down-";
    const auto of = [&](const char* name) { return Probability(options.percent[prefix + name]); };
    settings.trouble[direction] = {
        .lost = of("lost"),
        .repeated = of("repeated"),
        .repeated_late = of("repeated-late"),
        .reordered = of("reordered"),
        .delayed = of("delayed"),
        .zero = 0,
        .reorder_ns = static_cast<std::uint64_t>(options.reorder_us * 1e3),
        .delay_ns = static_cast<std::uint64_t>(options.delay_ms * 1e6)};
  }
  return settings;
}

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("--link", options.links,
                 "two interfaces, as first:second; \"up\" is from the first to the second. May be "
                 "repeated")
      ->required();
  for (const char* direction : {"up", "down"}) {
    for (const char* trouble : {"lost", "repeated", "repeated-late", "reordered", "delayed"}) {
      const std::string name = std::string(direction) + "-" + trouble;
      app.add_option("--" + name, options.percent[name],
                     "percentage of packets of IPv4 in this direction (default 0)")
          ->check(CLI::Range(0.0, 100.0));
    }
  }
  app.add_option("--reorder-us", options.reorder_us,
                 "how much later reordered packets are sent, at most (default 200)")
      ->check(CLI::Range(1.0, 1e6));
  app.add_option(
         "--delay-ms", options.delay_ms,
         "how much later delayed packets and late repetitions are sent, at most (default 5)")
      ->check(CLI::Range(0.01, 1e4));
  app.add_option("--seed", options.seed, "decides what happens to which packet (default 1)");
  app.add_option("--port", options.port,
                 "the aggregator's UDP port: its datagrams are also counted by kind");
}

void Say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

// Until a signal.
void Serve(Box& box, int signals) {
  const SystemClock clock;
  HeldPackets held;
  std::array<pollfd, 3> watched{{{.fd = box.descriptor(), .events = POLLIN, .revents = 0},
                                 {.fd = signals, .events = POLLIN, .revents = 0},
                                 {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0}}};
  for (;;) {
    const DurationNs wait = held.Wait(clock.Now());
    const timespec timeout{.tv_sec = wait / kSecond, .tv_nsec = wait % kSecond};
    ppoll(watched.data(), watched.size(), wait < 0 ? nullptr : &timeout, nullptr);
    box.TakePackets(held, clock.Now());
    held.SendDue(clock.Now());
    if ((watched[1].revents & POLLIN) != 0) break;
    if (watched[2].revents == 0) continue;
    std::array<char, 256> line{};
    if (read(STDIN_FILENO, line.data(), line.size()) <= 0) {
      watched[2].fd = -1;
    } else {
      Say(box.CountersAsJson(held.unsent()));
    }
  }
  Say(box.CountersAsJson(held.unsent()));
}

int Fail(const std::string& what) {
  std::fprintf(stderr, "bench-lossy-box: %s\n", what.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--build-info") return PrintBuildInfo();
  if (argc == 2 && std::string_view(argv[1]) == "--check") {
    const auto box = Box::Start({}, {});
    return box.ok() ? 0 : Fail(std::string(box.status().message()));
  }
  CLI::App app(
      "Forward packets between pairs of interfaces of this network namespace, and lose, repeat, "
      "reorder and delay some.");
  Options options;
  AddOptions(app, options);
  CLI11_PARSE(app, argc, argv);
  std::vector<BoxLink> links;
  for (const std::string& link : options.links) {
    const std::size_t colon = link.find(':');
    if (colon == std::string::npos) return Fail("--link " + link + ": not first:second");
    links.emplace_back(link.substr(0, colon), link.substr(colon + 1));
  }
  if (links.size() > PHUB_BOX_LINKS_MAX) return Fail("too many links");
  sigset_t ends{};
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  const Descriptor signals(signalfd(-1, &ends, SFD_CLOEXEC));
  auto box = Box::Start(links, SettingsOf(options));
  if (!box.ok()) return Fail(std::string(box.status().message()));
  std::fputs("event=box_ready\n", stderr);
  Serve(**box, signals.get());
  return 0;
}
