#include "server/front/front_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/base/errno_text.h"
#include "server/front/packet.h"

namespace phub::server {
namespace {

// Descriptors are moved out of the way of the numbers that the front inherits.
constexpr int kFreeNumber = 64;
// The front gets no other variable: the environment may contain secrets.
constexpr std::array<std::string_view, 5> kVariables = {
    "LD_LIBRARY_PATH=", "ASAN_OPTIONS=", "UBSAN_OPTIONS=", "TSAN_OPTIONS=", "LSAN_OPTIONS="};

std::vector<char*> EnvironmentOfFront() {
  std::vector<char*> kept;
  for (char** each = environ; *each != nullptr; ++each) {
    for (const std::string_view name : kVariables) {
      if (std::string_view(*each).starts_with(name)) kept.push_back(*each);
    }
  }
  kept.push_back(nullptr);
  return kept;
}

int Spawn(const std::string& program, const std::vector<Descriptor>& inherited, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  for (const int each : {STDIN_FILENO, STDOUT_FILENO}) {
    posix_spawn_file_actions_addopen(&actions, each, "/dev/null", O_RDWR, 0);
  }
  for (std::size_t i = 0; i < inherited.size(); ++i) {
    posix_spawn_file_actions_adddup2(&actions, inherited[i].get(),
                                     kFrontPair + static_cast<int>(i));
  }
  // The front counts the sockets that it inherits, so the next number must be free.
  posix_spawn_file_actions_addclose(&actions, kFrontPair + static_cast<int>(inherited.size()));
  std::string name = "phubd-front";
  std::string argument = kFrontArgument;
  char* const arguments[] = {name.data(), argument.data(), nullptr};
  std::vector<char*> environment = EnvironmentOfFront();
  const int error =
      posix_spawn(&pid, program.c_str(), &actions, &attributes, arguments, environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

absl::StatusOr<FrontProcess> FrontProcess::Start(const std::string& program,
                                                 const std::vector<Descriptor>& listening) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return absl::UnavailableError(fmt::format("socketpair: {}", ErrnoText(errno)));
  }
  Descriptor own(ends[0]);
  const Descriptor given(ends[1]);
  std::vector<Descriptor> inherited;
  inherited.emplace_back(fcntl(given.get(), F_DUPFD_CLOEXEC, kFreeNumber));
  for (const Descriptor& each : listening) {
    inherited.emplace_back(fcntl(each.get(), F_DUPFD_CLOEXEC, kFreeNumber));
  }
  pid_t pid = 0;
  const int error = Spawn(program, inherited, pid);
  if (error != 0) {
    return absl::UnavailableError(
        fmt::format("cannot start the front ({}): {}", program, ErrnoText(error)));
  }
  return FrontProcess(pid, std::move(own));
}

// The file is opened now, because the front makes itself invisible to processes of the same user.
FrontProcess::FrontProcess(pid_t pid, Descriptor pair)
    : pid_(pid),
      pair_(std::move(pair)),
      statm_(open(fmt::format("/proc/{}/statm", pid).c_str(), O_RDONLY | O_CLOEXEC)) {}

FrontProcess::FrontProcess(FrontProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      pair_(std::move(other.pair_)),
      statm_(std::move(other.statm_)) {}

FrontProcess::~FrontProcess() {
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void FrontProcess::Kill() {
  if (pid_ != 0) kill(pid_, SIGKILL);
}

std::optional<std::string> FrontProcess::Ended() {
  int status = 0;
  if (pid_ == 0 || waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = 0;
  if (WIFSIGNALED(status)) return fmt::format("signal {}", strsignal(WTERMSIG(status)));
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

std::uint64_t FrontProcess::ResidentBytes() const {
  char text[128] = {};
  if (pread(statm_.get(), text, sizeof text - 1, 0) <= 0) return 0;
  unsigned long size = 0;
  unsigned long resident = 0;
  unsigned long shared = 0;
  // Without the pages of the program and its libraries.
  if (std::sscanf(text, "%lu %lu %lu", &size, &resident, &shared) != 3 || resident < shared) {
    return 0;
  }
  return (resident - shared) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace phub::server
