// A barrier for the ranks of a block before an exchange that is timed by itself. The ranks must not
// wait over the measured network. They are processes on one host, so the barrier is a counter in a
// file that all ranks map.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace phub::bench {

class StartLine {
 public:
  // `path`: the same for all `world` ranks, and unique to the block.
  StartLine(const std::string& path, std::uint32_t world);
  ~StartLine();
  StartLine(const StartLine&) = delete;
  StartLine& operator=(const StartLine&) = delete;

  void Arrive();           // arrives for the next exchange
  bool all_there() const;  // whether all ranks have arrived for it

 private:
  const std::uint32_t world_;
  std::uint64_t arrivals_ = 0;  // the arrivals of this rank
  std::atomic<std::uint64_t>* arrived_ = nullptr;
};

}  // namespace phub::bench
