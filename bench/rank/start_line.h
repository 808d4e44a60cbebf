// Where all ranks of a block wait for each other before an exchange that is timed by itself: their
// wait must not go over the network that is measured. They are processes of one host, so it is a
// counter in a file that all of them map.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace phub::bench {

class StartLine {
 public:
  // `path`: the same for all `world` ranks, and of no other block.
  StartLine(const std::string& path, std::uint32_t world);
  ~StartLine();
  StartLine(const StartLine&) = delete;
  StartLine& operator=(const StartLine&) = delete;

  void Arrive();           // for the next exchange
  bool all_there() const;  // have all arrived for it?

 private:
  const std::uint32_t world_;
  std::uint64_t arrivals_ = 0;  // this rank's
  std::atomic<std::uint64_t>* arrived_ = nullptr;
};

}  // namespace phub::bench
