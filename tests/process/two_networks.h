// Two network namespaces with two networks between them, one for control and one for data, which a
// test cuts in either direction. Needs the right to create namespaces (CAP_SYS_ADMIN).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/process/process.h"

namespace phub::process {

class TwoNetworks {
 public:
  // Moves this thread, and everything that it starts later, to a namespace of its own: the
  // daemon's. problem() says why that failed.
  TwoNetworks();
  const std::string& problem() const { return problem_; }

  static constexpr const char* kControlAddress = "10.1.0.9";  // the daemon's
  static constexpr const char* kDataAddress = "10.2.0.9";

  // Starts a program in the other namespace: the workers'.
  Process StartInOther(const std::string& program, std::vector<std::string> arguments) const;
  enum class Network : std::uint8_t { kControl = 1, kData = 2 };
  // Drops every packet of that network in one direction.
  bool CutToWorkers(Network network);
  bool CutFromWorkers(Network network);
  // REQUIRES: that direction is cut.
  bool RestoreToWorkers(Network network);
  bool RestoreFromWorkers(Network network);

 private:
  bool Run(const std::string& program, const std::vector<std::string>& arguments);
  bool RunInOther(std::vector<std::string> command);

  std::string problem_;
  std::optional<Process> other_;  // keeps the workers' namespace
};

}  // namespace phub::process
