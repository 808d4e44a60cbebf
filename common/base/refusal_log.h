// Limits the log lines about peers that are refused again and again: one line per peer every ten
// seconds, which says how many were left out. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "common/base/clock.h"

namespace phub {

class RefusalLog {
 public:
  // Whether to log a refusal of this peer now. If so, the number of its refusals since the last
  // line that were not logged.
  std::optional<std::uint64_t> Take(const std::string& peer, TimeNs now);

 private:
  struct Peer {
    TimeNs logged_at = 0;
    std::uint64_t left_out = 0;
  };
  void Shrink(TimeNs now);

  std::mutex mutex_;
  std::map<std::string, Peer> peers_;
};

}  // namespace phub
