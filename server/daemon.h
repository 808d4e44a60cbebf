// The daemon, put together: core loops on their threads, the control plane, the listener of data
// lanes. Takes settings, knows nothing of files, flags or signals: those are main.cc's.
//
// Threads: the owner's for every call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/cpu_topology.h"
#include "server/config/settings.h"

namespace phub::server {

class Daemon {
 public:
  // Binds both ports and serves; or says what is in the way and what to do about it.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Settings& settings,
                                                       const CpuTopology& topology);
  // Stops what still runs; jobs end without a word. Drain first.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  std::uint16_t control_port() const;
  std::uint16_t data_port() const;
  std::string metrics_url() const;  // "http://127.0.0.1:7780/metrics", or "off"
  std::string Summary() const;  // one line for people: where it serves, on which cores

  // For an administrator's drains that come without a deadline.
  void SetDrainTimeout(DurationNs timeout);
  // False if some core loop has not run since the last call: it hangs. Does not return if control
  // does. To be called at most once a second: an idle loop runs ten times in that.
  bool MakesProgress();

  // No new jobs from now on; those that run may end for `grace`, then they are ended with an error
  // that says so. Returns at once.
  void Drain(DurationNs grace);
  bool Drained();
  std::size_t job_count();

 private:
  struct Parts;
  explicit Daemon(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace phub::server
