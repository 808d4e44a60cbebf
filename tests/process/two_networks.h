// Two network namespaces with two networks between them, one for control and one for data, which a
// test cuts in either direction. Needs the right to create namespaces (CAP_SYS_ADMIN).
#pragma once

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
  // Drops every packet of the data network in one direction.
  bool CutDataToWorkers();
  bool CutDataFromWorkers();

 private:
  bool Run(const std::string& program, const std::vector<std::string>& arguments);
  bool RunInOther(std::vector<std::string> command);

  std::string problem_;
  std::optional<Process> other_;  // keeps the workers' namespace
};

}  // namespace phub::process
