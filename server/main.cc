// phubd: reads the settings, starts the daemon, waits for a signal, drains.
//   SIGTERM, SIGINT   drain, leave with 0; a second one leaves at once with 1
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/cpu_topology.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "server/config/config.h"
#include "server/daemon.h"

namespace phub::server {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// How often a draining daemon looks whether its last job has ended.
constexpr DurationNs kDrainPoll = 10 * kMillisecond;
// After drain_timeout every job is ended by force; that takes moments, or something is broken.
constexpr DurationNs kDrainOvertime = 5 * kSecond;

sigset_t HandledSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Before any thread starts: all inherit it, so that signals come to WaitForSignal alone.
void PrepareSignals() {
  const sigset_t signals = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a peer that is gone is an error value of write()
}

// 0 when the time is up. Negative timeout: no limit.
int WaitForSignal(DurationNs timeout) {
  const sigset_t signals = HandledSignals();
  const timespec limit{timeout / kSecond, timeout % kSecond};
  for (;;) {
    const int number =
        timeout < 0 ? sigwaitinfo(&signals, nullptr) : sigtimedwait(&signals, nullptr, &limit);
    if (number > 0) return number;
    if (errno == EAGAIN) return 0;
  }
}

// Written aside and renamed, so that whoever waits for the file never reads half of it.
absl::Status WritePortFile(const std::string& path, std::uint16_t port) {
  const std::string aside = fmt::format("{}.{}", path, getpid());
  std::FILE* file = std::fopen(aside.c_str(), "w");
  bool written = file != nullptr;
  if (written) {
    written = std::fprintf(file, "%u\n", unsigned{port}) > 0;
    written = std::fclose(file) == 0 && written;
  }
  if (written && std::rename(aside.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  std::remove(aside.c_str());
  return absl::FailedPreconditionError(
      fmt::format("cannot write port_file \"{}\": {}", path, std::strerror(error)));
}

int Fail(std::string_view message) {
  fmt::print(stderr, "phubd: {}\n", message);
  return kExitFailure;
}

int DrainAndLeave(Daemon& daemon, DurationNs grace) {
  const SystemClock clock;
  const TimeNs started = clock.Now();
  daemon.Drain(grace);
  while (!daemon.Drained()) {
    if (clock.Now() - started > grace + kDrainOvertime) {
      LogError("event=drain_failed jobs={}", daemon.job_count());
      return kExitFailure;
    }
    if (const int number = WaitForSignal(kDrainPoll); number != 0) {
      LogWarning("event=stopped_at_once signal={} jobs={}", strsignal(number), daemon.job_count());
      std::_Exit(kExitFailure);  // the second signal: nothing is waited for any more
    }
  }
  LogInfo("event=stopped after={}", HumanDuration(clock.Now() - started));
  return kExitOk;
}

int Serve(const Settings& settings) {
  SetLogLevel(settings.log_level);
  const auto topology = CpuTopology::Create();
  if (!topology.ok()) return Fail(MessageOf(topology.status()));
  auto daemon = Daemon::Start(settings, *topology);
  if (!daemon.ok()) {
    Fail(MessageOf(daemon.status()));
    return absl::IsInvalidArgument(daemon.status()) ? kExitUsage : kExitFailure;
  }
  if (!settings.port_file.empty()) {
    const absl::Status status = WritePortFile(settings.port_file, (*daemon)->control_port());
    if (!status.ok()) return Fail(MessageOf(status));
  }
  fmt::print("{}\n", (*daemon)->Summary());
  std::fflush(stdout);
  const int number = WaitForSignal(-1);
  LogInfo("event=signal name={}", strsignal(number));
  const int exit_code = DrainAndLeave(**daemon, settings.drain_timeout);
  if (!settings.port_file.empty()) std::remove(settings.port_file.c_str());
  return exit_code;
}

int Main(int argument_count, const char* const* arguments, char** environment_block) {
  std::vector<std::string> environment;
  for (char** entry = environment_block; *entry != nullptr; ++entry)
    environment.emplace_back(*entry);
  const Config config =
      LoadConfig({arguments, static_cast<std::size_t>(argument_count)}, environment);
  if (config.action == Action::kHelp) {
    fmt::print("{}", HelpText());
    return kExitOk;
  }
  if (config.action == Action::kVersion) {
    fmt::print("{}\n", VersionText());
    return kExitOk;
  }
  for (const std::string& problem : config.problems) fmt::print(stderr, "phubd: {}\n", problem);
  if (!config.problems.empty()) return kExitUsage;
  if (config.action == Action::kCheckConfig) {
    fmt::print("ok\n");
    return kExitOk;
  }
  if (config.action == Action::kDumpConfig) {
    fmt::print("{}", DumpConfig(config));
    return kExitOk;
  }
  // gRPC's own lines on standard error are not ours: what it cannot do comes back as a status.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  PrepareSignals();
  return Serve(config.settings);
}

}  // namespace
}  // namespace phub::server

int main(int argument_count, char** arguments) {
  return phub::server::Main(argument_count, arguments, environ);
}
