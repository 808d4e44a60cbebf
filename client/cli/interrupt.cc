#include "client/cli/interrupt.h"

#include <signal.h>

namespace phub::client::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

volatile sig_atomic_t noted_signal = 0;

void Note(int number) { noted_signal = number; }

}  // namespace

Interrupt::Interrupt() {
  noted_signal = 0;
  struct sigaction action {};
  action.sa_handler = Note;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int number : kSignals) {
    struct sigaction given {};
    // For example nohup and background jobs of scripts ignore signals on purpose.
    if (sigaction(number, nullptr, &given) == 0 && given.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
  }
}

Interrupt::~Interrupt() {
  for (const int number : kSignals) {
    struct sigaction given {};
    if (sigaction(number, nullptr, &given) == 0 && given.sa_handler == Note)
      signal(number, SIG_DFL);
  }
}

bool Interrupt::noted() const { return noted_signal != 0; }

}  // namespace phub::client::cli
