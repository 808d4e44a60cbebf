// The user's terminal: its width, and single keys. One thread.
#pragma once

#include <cstddef>

#include "common/base/clock.h"

namespace phub::client::cli {

// The width of the terminal at standard output, or of COLUMNS if that is set. 0: no terminal.
std::size_t TerminalColumns();

// While it exists, keys arrive at once and are not shown. Does nothing unless standard input and
// output are terminals. At most one at a time.
class KeyReader {
 public:
  KeyReader();
  ~KeyReader();  // restores the terminal, as signals that end the program do
  KeyReader(const KeyReader&) = delete;
  KeyReader& operator=(const KeyReader&) = delete;

  bool active() const { return active_; }
  // Waits for a key. 0 if none was pressed within `timeout`; 'q' at the end of the input.
  char Wait(DurationNs timeout) const;

 private:
  bool active_ = false;
};

}  // namespace phub::client::cli
