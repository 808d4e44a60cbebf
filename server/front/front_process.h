// The front as a child process, seen from phubd. Owner's thread; the thread that starts it must
// live as long as the process, because the process dies with it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"

namespace phub::server {

class FrontProcess {
 public:
  static absl::StatusOr<FrontProcess> Start(const std::string& program,
                                            const std::vector<Descriptor>& listening);
  ~FrontProcess();  // kills it
  FrontProcess(FrontProcess&& other) noexcept;
  FrontProcess& operator=(FrontProcess&& other) = delete;

  pid_t pid() const { return pid_; }
  int pair() const { return pair_.get(); }
  void ClosePair() { pair_.Reset(); }
  void Kill();
  // How it ended ("exit code 1", "signal Killed"); nullopt: it runs.
  std::optional<std::string> Ended();
  std::uint64_t ResidentBytes() const;

 private:
  FrontProcess(pid_t pid, Descriptor pair);

  pid_t pid_;  // 0: waited for
  Descriptor pair_;
  Descriptor statm_;
};

}  // namespace phub::server
