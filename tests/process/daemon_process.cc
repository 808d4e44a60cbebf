#include "tests/process/daemon_process.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace phub::process {
namespace {

std::vector<std::string> WithPort(std::vector<std::string> arguments, const std::string& folder) {
  if (std::ranges::find(arguments, "--listen") == arguments.end()) {
    arguments.insert(arguments.begin(), {"--listen", "127.0.0.1:0"});
  }
  arguments.insert(arguments.begin(), {"--port-file", fmt::format("{}/port", folder)});
  return arguments;
}

// Enough for the report of a sanitizer.
constexpr std::size_t kShownBytes = 8000;

}  // namespace

const char* const kPhubd = PHUB_TEST_PHUBD;
const char* const kPhubctl = PHUB_TEST_PHUBCTL;

DaemonProcess::DaemonProcess(std::vector<std::string> arguments,
                             const std::vector<std::string>& environment)
    : process_(
          Process::Start(kPhubd, WithPort(std::move(arguments), folder_.path()), environment)) {
  if (!process_.WaitForOutput("serves on", kStartPatience)) return;
  std::ifstream port_file(fmt::format("{}/port", folder_.path()));
  std::string port;
  port_file >> port;
  endpoint_ = fmt::format("127.0.0.1:{}", port);
}

DaemonProcess::~DaemonProcess() {
  if (!::testing::Test::HasFailure()) return;
  const std::string outputs = process_.Outputs();
  const std::size_t shown = std::min(outputs.size(), kShownBytes);
  fmt::print(stderr, "The test failed. Its daemon {} {}. The end of what it printed:\n{}\n",
             endpoint_, process_.IsRunning() ? "still runs" : "has ended",
             outputs.substr(outputs.size() - shown));
}

std::string DaemonProcess::Logged(const std::string& field) {
  // Another thread writes the log, so its line may come after the one on standard output.
  if (!process_.WaitForOutput("event=serving ", kStartPatience)) return {};
  const std::string log = process_.Outputs();
  const std::size_t line = log.find("event=serving ");
  if (line == std::string::npos) return {};
  const std::string mark = " " + field + "=";
  const std::size_t at = log.find(mark, line);
  if (at == std::string::npos) return {};
  return log.substr(at + mark.size(), log.find_first_of(" \n", at + 1) - at - mark.size());
}

Finished DaemonProcess::Ask(std::vector<std::string> arguments) const {
  return RunToEnd(kPhubctl, arguments, {fmt::format("PHUB_ENDPOINT={}", endpoint_)});
}

}  // namespace phub::process
