// Prints results: aligned tables for people, JSON for programs. One thread.
#pragma once

#include <absl/status/status.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/cli/cli.h"

namespace phub::client::cli {

// A table with columns two spaces apart, each as wide as its widest cell; numbers are aligned to
// the right. Cells are UTF-8. Control characters are replaced, since a terminal could interpret
// them.
class Table {
 public:
  enum class Align : std::uint8_t { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
    // A narrow table leaves out the columns with the largest values first; 0: none.
    int optional = 0;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void Add(std::vector<std::string> cells);  // one cell per column
  // Title line and rows, each ending in a newline. width: leave out optional columns until the
  // lines are at most that long. If that does not suffice, the texts of the first column are
  // shortened ("training-of-res..."), and at last the lines are cut. 0: any width.
  std::string Text(std::size_t width = 0) const;
  bool empty() const { return rows_.empty(); }

 private:
  std::vector<std::size_t> ColumnsFor(std::size_t width,
                                      const std::vector<std::size_t>& widths) const;
  // The length of a line with these columns.
  static std::size_t LineLength(const std::vector<std::size_t>& shown,
                                const std::vector<std::size_t>& widths);

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// The message as JSON: every field, names as in the .proto file, 64-bit numbers as strings (readers
// could round numbers). On one line if `compact`.
std::string ToJson(const google::protobuf::Message& message, bool compact);

// Asks before an irreversible action. True with --yes, or if the user at a terminal confirms.
// Without a terminal it prints to standard error that --yes is needed.
bool Confirmed(bool yes, const std::string& question);

// Prints an error of a command that asks no daemon to standard error. Returns the exit code.
int ReportError(const absl::Status& status);

// Prints a daemon's warning to standard error; nothing if it is empty.
void PrintWarning(const std::string& warning);

// "2026-11-21 23:15:18 UTC"; "-" for 0. `at_ns`: since 1970.
std::string DateText(std::int64_t at_ns);

// The mean of durations, "3.1 ms"; "-" without any.
std::string MeanText(std::uint64_t total_ns, std::uint64_t count);

// Calls `show` once or, with an interval, repeatedly until it fails or the user interrupts. `show`
// returns text and an exit code; on a terminal each text replaces the previous one.
struct Shown {
  int exit_code = kOk;
  std::string text;
};
int Show(DurationNs interval, const std::function<Shown()>& show);  // interval 0: once

inline const std::string kOnce;  // for commands without --watch
// The interval of --watch; 0 if the option was not given.
DurationNs WatchInterval(const std::string& watch_text);
// Adds --watch to a command.
void AddWatch(Subcommand command, std::string& watch_text);

}  // namespace phub::client::cli
