// phubd: reads the settings, starts the daemon, waits for a signal, drains.
//   SIGTERM, SIGINT   drain and exit with 0; a second one exits at once with 1
//   SIGHUP            read the settings again
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/cpu_topology.h"
#include "common/base/log.h"
#include "common/base/standard_streams.h"
#include "common/base/status_text.h"
#include "server/config/config.h"
#include "server/config/reload.h"
#include "server/config/setting_table.h"
#include "server/daemon.h"
#include "server/front/front.h"
#include "server/front/packet.h"
#include "server/service_manager.h"
#include "server/start_check.h"
#include "server/store_command.h"

namespace phub::server {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// How often a daemon without a supervisor checks that its threads make progress, for the log.
constexpr DurationNs kStartGrace = 30 * kSecond;  // while the control store does not answer
constexpr DurationNs kProgressCheck = 5 * kSecond;
// How often a draining daemon checks whether its last job has ended.
constexpr DurationNs kDrainPoll = 10 * kMillisecond;
// Lines of the log that may wait while their reader stalls, and how long phubd waits at its end for
// the last lines to be written.
constexpr std::size_t kLogLinesMax = 8192;
constexpr DurationNs kLogFlushTimeout = 2 * kSecond;
// After drain_timeout every job is ended by force. If that takes longer than this, phubd gives up.
constexpr DurationNs kDrainOvertime = 5 * kSecond;

sigset_t HandledSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  return signals;
}

// Call before any thread starts: threads inherit the mask, so only WaitForSignal gets the signals.
void PrepareSignals() {
  const sigset_t signals = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

// The signal's number; 0 on timeout. A negative timeout means no limit.
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

// Writes a temporary file and renames it, so that a program that waits for the file never reads a
// part of it.
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

// The daemon's arguments and environment, which SIGHUP reads again.
struct Sources {
  std::vector<const char*> arguments;
  std::vector<std::string> environment;

  Config Load() const { return LoadConfig(arguments, environment); }
};

std::string Joined(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ","));
}

// Applies the settings that can change without a restart. An invalid configuration changes nothing.
void Reload(const Sources& sources, Config& running, Daemon& daemon) {
  const Config read = sources.Load();
  for (const std::string& problem : read.problems) LogError("event=reload_refused {}", problem);
  if (!read.problems.empty()) return;
  const ConfigChanges changes = CompareConfigs(running, read);
  running.settings = SettingsAfterReload(running.settings, read.settings);
  for (std::size_t i = 0; i < running.effective.size(); ++i) {
    const std::string_view name = AllSettings()[i].name;
    if (std::find(changes.applied.begin(), changes.applied.end(), name) != changes.applied.end())
      running.effective[i] = read.effective[i];
  }
  SetLogLevel(running.settings.log_level);
  daemon.SetDrainTimeout(running.settings.drain_timeout);
  LogInfo("event=reloaded changed=\"{}\" unchanged_until_restart=\"{}\"", Joined(changes.applied),
          Joined(changes.need_restart));
}

int DrainAndLeave(Daemon& daemon, DurationNs grace, ServiceManager& manager) {
  const SystemClock clock;
  const TimeNs started = clock.Now();
  TimeNs kept_alive = started;
  // Ask the supervisor to wait a little longer than draining may take.
  manager.Stopping("draining", grace + 2 * kDrainOvertime);
  daemon.Drain(grace);
  while (!daemon.Drained()) {
    const TimeNs now = clock.Now();
    if (now - started > grace + kDrainOvertime) {
      LogError("event=drain_failed jobs={}", daemon.job_count());
      return kExitFailure;
    }
    if (now - kept_alive >= manager.keep_alive_interval()) {
      manager.KeepAlive();
      kept_alive = now;
    }
    const int number = WaitForSignal(kDrainPoll);
    if (number != 0 && number != SIGHUP) {
      LogWarning("event=stopped_at_once signal={} jobs={}", strsignal(number), daemon.job_count());
      FlushLog(kLogFlushTimeout);
      std::_Exit(kExitFailure);  // the second signal: do not wait for jobs
    }
  }
  LogInfo("event=stopped after={}", HumanDuration(clock.Now() - started));
  return kExitOk;
}

// Returns when a signal asks to stop.
void ServeUntilSignal(const Sources& sources, Config& config, Daemon& daemon,
                      ServiceManager& manager) {
  const SystemClock clock;
  const bool keeps_alive = manager.keep_alive_interval() > 0;
  const DurationNs interval =
      keeps_alive ? std::min(manager.keep_alive_interval(), kProgressCheck) : kProgressCheck;
  manager.Ready(daemon.Summary());
  for (;;) {
    const int number = WaitForSignal(interval);
    if (number == 0) {
      if (daemon.MakesProgress() && keeps_alive) manager.KeepAlive();
      continue;
    }
    LogInfo("event=signal name={}", strsignal(number));
    if (number != SIGHUP) return;
    manager.Reloading(clock.Now());
    Reload(sources, config, daemon);
    manager.Ready(daemon.Summary());
  }
}

int Serve(const Sources& sources, Config config) {
  const Settings& settings = config.settings;
  ServiceManager manager = ServiceManager::FromEnvironment();
  SetLogLevel(settings.log_level);
  const auto topology = CpuTopology::Create();
  if (!topology.ok()) return Fail(MessageOf(topology.status()));
  auto daemon = Daemon::Start(settings, *topology, [&manager] {
    manager.Starting("waits for the control store", kStartGrace);
  });
  if (!daemon.ok()) {
    Fail(MessageOf(daemon.status()));
    return absl::IsInvalidArgument(daemon.status()) ? kExitUsage : kExitFailure;
  }
  const std::string port_file = settings.port_file;
  if (!port_file.empty()) {
    const absl::Status status = WritePortFile(port_file, (*daemon)->control_port());
    if (!status.ok()) return Fail(MessageOf(status));
  }
  // Not through stdout's buffer: a daemon whose output cannot be written serves all the same.
  const std::string summary = (*daemon)->Summary() + "\n";
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, summary.data(), summary.size());
  ServeUntilSignal(sources, config, **daemon, manager);
  const int exit_code = DrainAndLeave(**daemon, settings.drain_timeout, manager);
  if (!port_file.empty()) std::remove(port_file.c_str());
  return exit_code;
}

int CheckConfig(const Settings& settings) {
  SetLogLevel(LogLevel::kError);
  const auto topology = CpuTopology::Create();
  if (!topology.ok()) return Fail(MessageOf(topology.status()));
  const std::vector<std::string> problems = CheckStart(settings, *topology);
  for (const std::string& problem : problems) fmt::print(stderr, "phubd: {}\n", problem);
  if (!problems.empty()) return kExitFailure;
  fmt::print("ok\n");
  return kExitOk;
}

int Main(int argument_count, const char* const* arguments, char** environment_block) {
  Sources sources;
  sources.arguments.assign(arguments, arguments + argument_count);
  for (char** entry = environment_block; *entry != nullptr; ++entry)
    sources.environment.emplace_back(*entry);
  Config config = sources.Load();
  if (config.action == Action::kHelp) {
    fmt::print("{}", HelpText());
    return kExitOk;
  }
  if (config.action == Action::kVersion) {
    fmt::print("{}\n", VersionText());
    return kExitOk;
  }
  if (config.action == Action::kManPage) {
    fmt::print("{}", ManPageText());
    return kExitOk;
  }
  for (const std::string& problem : config.problems) fmt::print(stderr, "phubd: {}\n", problem);
  if (!config.problems.empty()) return kExitUsage;
  if (config.action == Action::kCheckConfig) return CheckConfig(config.settings);
  if (config.action == Action::kDumpConfig) {
    fmt::print("{}", DumpConfig(config));
    return kExitOk;
  }
  // Silence gRPC's own log on standard error; phubd reports its errors from the returned statuses.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  PrepareSignals();
  StartLogThread(kLogLinesMax);
  const int exit_code = Serve(sources, std::move(config));
  FlushLog(kLogFlushTimeout);
  return exit_code;
}

}  // namespace
}  // namespace phub::server

int main(int argument_count, char** arguments) {
  phub::OpenStandardStreams();
  // gRPC's threads may outlive main and still use OpenSSL, so it must not clean up at exit.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  // phubd starts itself this way as the front of its control port.
  if (argument_count == 2 && std::string_view(arguments[1]) == phub::server::kFrontArgument)
    return phub::server::RunFront();
  // `phubctl store` starts phubd this way.
  if (argument_count >= 2 && std::string_view(arguments[1]) == phub::server::kStoreArgument) {
    return phub::RunWithOutput("phubd", [&] {
      return phub::server::RunStoreCommand({arguments + 2, arguments + argument_count});
    });
  }
  return phub::RunWithOutput(
      "phubd", [&] { return phub::server::Main(argument_count, arguments, environ); });
}
