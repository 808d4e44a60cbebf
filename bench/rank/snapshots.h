// Has the harness read counters before the first timed exchange and after the last one, while no
// rank exchanges anything.
#pragma once

#include <cstdint>
#include <string>

#include "bench/rank/start_line.h"

namespace phub::bench {

class Snapshots {
 public:
  // `folder`: the block's, with the harness's pipes (harness/snapshots.py).
  Snapshots(std::string folder, std::uint32_t rank, std::uint32_t world);
  // Returns once all ranks have called it and the counters have been read.
  void Take();

 private:
  void AwaitAll();

  const std::string folder_;
  const std::uint32_t rank_;
  StartLine line_;
};

}  // namespace phub::bench
