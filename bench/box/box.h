// The box: its program in the kernel, attached to both ends of each link. One thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/box/layout.h"
#include "common/base/clock.h"

namespace phub::bench {

class HeldPackets;

// The names of two interfaces. "Up" is the direction from the first to the second.
using BoxLink = std::pair<std::string, std::string>;

class Box {
 public:
  static absl::StatusOr<std::unique_ptr<Box>> Start(const std::vector<BoxLink>& links,
                                                    const phub_box_settings& settings);
  ~Box();  // detaches: nothing is forwarded any more

  // Readable once packets are to be held.
  int descriptor() const;
  void TakePackets(HeldPackets& held, TimeNs now);
  // {"links":[{"up":{...},"down":{...}},...]}
  std::string CountersAsJson(std::uint64_t unsent) const;

 private:
  struct Handles;
  explicit Box(std::unique_ptr<Handles> handles);
  absl::Status Attach(const std::string& interface, const std::string& other, std::uint32_t index);

  std::unique_ptr<Handles> handles_;
  std::vector<int> attached_;  // indexes of interfaces
  std::size_t links_ = 0;
};

}  // namespace phub::bench
