// The three sources of settings: flags, environment and file. Each reader returns the assignments
// in order, and every problem as one line with its place, its cause and the fix:
//   phubd.toml:3:1: unknown setting "lisen"; did you mean "listen"?
// Readers report all problems, not only the first. Only ReadConfigFile does I/O. Any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/config/setting_kind.h"

namespace phub::server {

enum class SettingSource : std::uint8_t { kDefault, kFile, kEnvironment, kFlag };

struct Assignment {
  std::size_t setting_index = 0;  // into AllSettings()
  SettingSource source = SettingSource::kDefault;
  std::string place;  // "phubd.toml:3:1", "PHUB_LISTEN", "--listen", "default"
  std::string shown;  // as the user wrote it: for messages
  SettingValue value;
};

struct Assignments {
  std::vector<Assignment> found;
  std::vector<std::string> problems;
};

// The action and the settings on the command line. --help, --version or --man-page overrides every
// other argument.
enum class Action : std::uint8_t { kRun, kHelp, kVersion, kManPage, kCheckConfig, kDumpConfig };
struct CommandLine {
  Action action = Action::kRun;
  std::string config_path;  // empty: not given
  Assignments assignments;
};
CommandLine ReadCommandLine(std::span<const char* const> arguments);  // [0]: the program's name

// `environment` is a list of "NAME=value". Only PHUB_* is read. A variable with an empty value
// counts as not set. Variables of phub's other programs are ignored.
struct Environment {
  std::string config_path;  // PHUB_CONFIG
  Assignments assignments;
};
Environment ReadEnvironment(std::span<const std::string> environment);

Assignments ReadConfigFile(const std::string& path);
// The same from text; `path` is only for messages.
Assignments ReadConfigText(std::string_view text, const std::string& path);

}  // namespace phub::server
