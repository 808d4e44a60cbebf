// Two network namespaces with two networks between them, one for control and one for data, which a
// test cuts in either direction. Needs the right to create namespaces (CAP_SYS_ADMIN).
//
// With a box, the data network leads through a third namespace, whose interfaces forward nothing by
// themselves: kBoxLink is for bench-lossy-box. Senders cut joined datagrams and segments, as for a
// wire.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/process/process.h"

namespace phub::process {

// An interface of veth receives packets that a program redirects only with GRO or a program of its
// own. False: the kernel refused. REQUIRES: it is in this thread's namespace.
bool TurnGroOn(const std::string& interface);

class TwoNetworks {
 public:
  // Moves this thread, and everything that it starts later, to a namespace of its own: the
  // daemon's. problem() says why that failed.
  explicit TwoNetworks(bool with_box = false);
  const std::string& problem() const { return problem_; }
  // The same, or why this process may not load programs into the kernel.
  std::string ProblemWithPrograms() const;

  static constexpr const char* kControlAddress = "10.1.0.9";  // the daemon's
  static constexpr const char* kDataAddress = "10.2.0.9";
  static constexpr const char* kOurInterface = "a2";  // the daemon's, in the data network
  static constexpr const char* kItsInterface = "b2";  // the workers'
  static constexpr const char* kItsAddress = "10.2.0.2";
  static constexpr const char* kBoxLink = "x2:y2";  // x2 is on the daemon's side

  // Starts a program in the other namespace: the workers'.
  Process StartInOther(const std::string& program, std::vector<std::string> arguments) const;
  // Starts a program in the box's namespace. REQUIRES: with_box.
  Process StartInBox(const std::string& program, std::vector<std::string> arguments) const;
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
  // Starts a process that keeps a new namespace.
  static Process MakeNamespace();
  void AddLinks(const std::string& ours, const std::string& theirs, const std::string& net);

  std::string problem_;
  std::optional<Process> other_;  // keeps the workers' namespace
  std::optional<Process> box_;    // keeps the box's
};

}  // namespace phub::process
