// The daemon: core loops on their threads, the control plane and the listener of data lanes. It
// gets its settings as values; main.cc handles files, flags and signals.
//
// Threads: only the owner's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/cpu_topology.h"
#include "server/config/settings.h"

namespace phub::server {

class Daemon {
 public:
  // Binds the ports and serves, or returns an error with the cause and the fix. May wait for the
  // control store for any time, and calls `waiting` at least every few seconds meanwhile.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Settings& settings,
                                                       const CpuTopology& topology,
                                                       const std::function<void()>& waiting);
  // Stops everything; running jobs end without a notice to their workers. Call Drain first.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  std::uint16_t control_port() const;
  std::uint16_t data_port() const;
  std::string Summary() const;  // one line for people: addresses and cores

  // The deadline of an administrator's drain that has none of its own.
  void SetDrainTimeout(DurationNs timeout);
  // False if some core loop has not run since the last call, so it hangs, or if control has not
  // answered for minutes. Logs both, and control that does not answer for seconds. Takes no lock.
  // Call it at most once per second: an idle loop runs ten times per second.
  bool MakesProgress();

  // Refuses new jobs from now on. Running jobs may end within `grace`; after that they are ended
  // with an error. Returns at once.
  void Drain(DurationNs grace);
  bool Drained();
  std::size_t job_count();

 private:
  struct Parts;
  explicit Daemon(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace phub::server
