// Ctrl-C (SIGINT) or SIGTERM asks a long command to end early with what it has. One thread.
#pragma once

namespace phub::client::cli {

// While it exists, the first signal is noted, and a second one ends the program. At most one at a
// time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();  // signals end the program again
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool noted() const;
};

}  // namespace phub::client::cli
