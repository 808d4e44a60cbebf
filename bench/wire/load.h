// The load's programs in the kernel. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/wire/layout.h"

namespace phub::bench {

class WireLoad {
 public:
  // Loads these programs of load.bpf.c.
  static absl::StatusOr<std::unique_ptr<WireLoad>> Open(const std::vector<std::string>& programs);
  ~WireLoad();

  // Attaches it to an interface, at the driver, until this object is destroyed.
  absl::Status Attach(const std::string& program, const std::string& interface);
  absl::Status Configure(const phub_wire_load& load);
  // Runs the program for `frames` frames that begin with these bytes, in this thread.
  absl::Status Run(const std::string& program, std::span<const std::uint8_t> frame,
                   std::uint32_t frames);

 private:
  struct Handles;
  explicit WireLoad(std::unique_ptr<Handles> handles);
  int Program(const std::string& name) const;

  std::unique_ptr<Handles> handles_;
};

// The time that the kernel has spent in the newest program of this name, and how often it ran.
struct ProgramTime {
  std::uint64_t ns = 0;
  std::uint64_t runs = 0;
};
absl::StatusOr<ProgramTime> TimeOf(const std::string& program);
// The kernel measures programs until this descriptor is closed, at some cost.
int MeasurePrograms();

}  // namespace phub::bench
