// A phubd on its own ports, for process tests.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/process/process.h"
#include "tests/support/temporary_folder.h"

namespace phub::process {

// How long a test waits for a daemon to start; generous for sanitizers and busy machines.
inline constexpr DurationNs kStartPatience = 60 * kSecond;

// liveness_timeout of daemons in tests of bits. On a busy machine the front, whose priority is low,
// may need seconds to pass the heartbeats of ranks that are joining.
inline constexpr const char* kPatientLiveness = "10s";

// Paths of the programs under test.
extern const char* const kPhubd;
extern const char* const kPhubctl;

class DaemonProcess {
 public:
  // Waits until the daemon serves, on a port of 127.0.0.1 unless the arguments say otherwise
  // (--listen localhost:0). If it fails to start, endpoint() is empty; see process() for the
  // reason.
  explicit DaemonProcess(std::vector<std::string> arguments = {},
                         const std::vector<std::string>& environment = {});
  ~DaemonProcess();  // if the test has failed, prints the end of the daemon's output
  DaemonProcess(DaemonProcess&&) = delete;
  DaemonProcess& operator=(DaemonProcess&&) = delete;

  Process& process() { return process_; }
  const std::string& endpoint() const { return endpoint_; }  // "127.0.0.1:40123"
  // A field of the line that it logged when it began to serve: Logged("data_listen").
  std::string Logged(const std::string& field);
  // Runs phubctl against this daemon.
  Finished Ask(std::vector<std::string> arguments) const;

 private:
  TemporaryFolder folder_;
  Process process_;
  std::string endpoint_;
};

}  // namespace phub::process
