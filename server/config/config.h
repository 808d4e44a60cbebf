// phubd's configuration: flag > environment (PHUB_*) > file (TOML) > default, checked as a whole.
// Made once at start; immutable; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/config/config_sources.h"
#include "server/config/settings.h"

namespace phub::server {

struct Config {
  Action action = Action::kRun;
  Settings settings;
  std::vector<Assignment> effective;  // one per setting, in the order of the table
  // If not empty, do not use the other members. One line each, without the program's name.
  std::vector<std::string> problems;
};

// `arguments`: as passed to main(). `environment`: a list of "NAME=value". With --help, --version
// or --man-page nothing else is read. Reads the file of --config, otherwise that of PHUB_CONFIG,
// otherwise none.
Config LoadConfig(std::span<const char* const> arguments, std::span<const std::string> environment);

// The effective values as a TOML file, with the source of each in a comment. Reading the file back
// gives the same values.
std::string DumpConfig(const Config& config);
std::string HelpText();
std::string ManPageText();  // phubd(8), roff
std::string VersionText();  // "phubd 0.1.0 (0123456789ab)"

}  // namespace phub::server
