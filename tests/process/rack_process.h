// A rack: several phubd on this host that know each other by one list, for process tests.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/process/daemon_process.h"

namespace phub::process {

// Where a daemon's number is to stand in arguments that all daemons have, as in names of files.
inline constexpr const char* kDaemonNumber = "{daemon}";

class RackProcess {
 public:
  // What the daemons have in common: they make up one rack, or are one each of several racks.
  enum class Kind { kOneRack, kManyRacks };
  // Starts the daemons and waits until all of them serve. One daemon is a rack of its own. Of many
  // racks, the last `aggregator_count` are aggregators, and each has `per_rack` daemons: those of
  // rack 0 come first.
  explicit RackProcess(std::size_t daemon_count, const std::vector<std::string>& arguments = {},
                       Kind kind = Kind::kOneRack, std::size_t aggregator_count = 0,
                       std::size_t per_rack = 1);

  bool serving() const;
  std::size_t size() const { return daemons_.size(); }
  std::size_t per_rack() const { return per_rack_; }
  const std::string& endpoint(std::size_t daemon) const { return endpoints_[daemon]; }
  Process& daemon(std::size_t daemon) { return daemons_[daemon]; }
  std::string Outputs() const;
  // Starts a daemon that has ended once more, at its endpoint, with `more` arguments (or with other
  // `racks`, `aggregators`, `daemons`); waits until it serves.
  void Restart(std::size_t daemon, const std::vector<std::string>& more = {});
  // phubctl on one of them.
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
