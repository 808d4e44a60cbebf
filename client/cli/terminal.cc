#include "client/cli/terminal.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace phub::client::cli {
namespace {

termios before;  // the terminal's settings while a KeyReader is active

// Only async-signal-safe calls.
void RestoreAndEnd(int number) {
  tcsetattr(STDIN_FILENO, TCSANOW, &before);
  signal(number, SIG_DFL);
  raise(number);
}

constexpr int kEndingSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

}  // namespace

std::size_t TerminalColumns() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0) return 0;
  if (const char* const columns = std::getenv("COLUMNS"); columns != nullptr) {
    if (const unsigned long given = std::strtoul(columns, nullptr, 10); given > 0) return given;
  }
  constexpr std::size_t kUsual = 80;
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsual;
}

KeyReader::KeyReader() {
  if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) return;
  if (tcgetattr(STDIN_FILENO, &before) != 0) return;
  termios keys = before;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  for (const int number : kEndingSignals) signal(number, RestoreAndEnd);
  active_ = tcsetattr(STDIN_FILENO, TCSANOW, &keys) == 0;
}

KeyReader::~KeyReader() {
  if (!active_) return;
  tcsetattr(STDIN_FILENO, TCSANOW, &before);
  for (const int number : kEndingSignals) signal(number, SIG_DFL);
}

char KeyReader::Wait(DurationNs timeout) const {
  const SystemClock clock;
  const TimeNs until = clock.Now() + timeout;
  for (;;) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const DurationNs left = std::max<DurationNs>(0, until - clock.Now());
    const int ready = poll(&input, 1, static_cast<int>(left / kMillisecond));
    if (ready == 0) return 0;
    if (ready < 0 && errno == EINTR) continue;  // for example, the window changed its size
    char key = 0;
    const ssize_t got = read(STDIN_FILENO, &key, 1);
    if (got == 1) return key;
    if (got < 0 && errno == EINTR) continue;
    return 'q';
  }
}

}  // namespace phub::client::cli
