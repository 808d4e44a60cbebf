// A rack: several phubd on this host that share one list of daemons, for process tests.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/process/daemon_process.h"

namespace phub::process {

// A placeholder for a daemon's number in arguments that all daemons share, such as file names.
inline constexpr const char* kDaemonNumber = "{daemon}";

class RackProcess {
 public:
  // The daemons form one rack, or each is a rack of its own.
  enum class Kind { kOneRack, kManyRacks };
  // Starts the daemons and waits until all serve. One daemon is a rack of its own. With kManyRacks,
  // the last `aggregator_count` racks are aggregators, and each rack has `per_rack` daemons, those
  // of rack 0 first.
  explicit RackProcess(std::size_t daemon_count, const std::vector<std::string>& arguments = {},
                       Kind kind = Kind::kOneRack, std::size_t aggregator_count = 0,
                       std::size_t per_rack = 1);

  bool serving() const;
  std::size_t size() const { return daemons_.size(); }
  std::size_t per_rack() const { return per_rack_; }
  const std::string& endpoint(std::size_t daemon) const { return endpoints_[daemon]; }
  Process& daemon(std::size_t daemon) { return daemons_[daemon]; }
  std::string Outputs() const;
  // Restarts a daemon that has ended, at its endpoint, with `more` arguments (or with other
  // `racks`, `aggregators`, `daemons`). Waits until it serves.
  void Restart(std::size_t daemon, const std::vector<std::string>& more = {});
  // Runs phubctl against one daemon.
  Finished Ask(std::size_t daemon, const std::vector<std::string>& arguments,
               std::vector<std::string> environment = {}) const;

 private:
  Process StartDaemon(std::size_t daemon, const std::vector<std::string>& more) const;
  std::vector<std::string> PlaceOf(std::size_t daemon) const;

  const std::vector<std::string> arguments_;
  const Kind kind_;
  const std::size_t aggregator_count_;
  const std::size_t per_rack_;
  std::vector<std::string> endpoints_;
  std::vector<Process> daemons_;
  bool serving_ = true;
};

}  // namespace phub::process
